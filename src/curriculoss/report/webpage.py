"""The report: one self-contained HTML page about runs, finished or not."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from curriculoss._files import write_text
from curriculoss._templates import fill
from curriculoss._text import percent
from curriculoss.errors import InvalidValueError
from curriculoss.figures import MARGIN_COLOURS
from curriculoss.report import charts, groups
from curriculoss.report.groups import LOSS_FIELDS, Group, Mean, ResultRow
from curriculoss.report.judgement import RULES, Comparison, listed, plural
from curriculoss.report.ridges import margin_ridges, span_of
from curriculoss.report.svg import colour_variable, inline_svg
from curriculoss.runs.folder import Run
from curriculoss.runs.spec import RunSpec

ALWAYS_SHOWN = ("data", "noise", "loss", "epochs", "seed")  # in the command of a run, even where they are defaults

HIDDEN = ("command", "started")  # of the environment


def build(runs: Sequence[Run], out: Path) -> Path:
    """Write the page about these runs, finished or not, to the file `out`.

    Returns:
        The path of the page.

    Raises:
        InvalidValueError: If there are no runs.
    """
    if not runs:
        raise InvalidValueError("a report expects at least one run, got none")
    out = Path(out)
    content = {**vars(_page(list(runs), out)), "rules": RULES, "margin_colours": MARGIN_COLOURS}
    text = fill("curriculoss.report", "webpage.html", content, html=True, epochs=groups.rows,
                cell=_cell, colour=colour_variable, count=plural, value=_value, percent=percent)  # fmt: skip
    write_text(out, text)
    return out


def headline(runs: Iterable[Run]) -> str:
    """One line that says which losses memorise and which underfit, in the noisiest setting of the runs."""
    return Comparison(groups.by_setting(groups.groups(runs))[0]).headline()


@dataclass(frozen=True)
class Setting:
    """Losses with the same data, noise, network and so on, as the page shows them."""

    comparison: Comparison
    noise: str
    right: float | None  # percent of the labels, if the true ones are known
    differing: Mapping[str, Any]  # other settings that tell it from the rest
    charts: Mapping[str, Markup | None]  # by measure; None without values
    ridges: Mapping[Group, Markup | None]
    by_truth: bool  # whether margins are shown apart for right and wrong labels


@dataclass(frozen=True)
class Page:
    """What the template fills in."""

    settings: Sequence[Setting]
    data: str
    when: str
    dropped: int  # number of runs
    runs: Sequence[Run]
    rows: Sequence[ResultRow]
    colours: Mapping[str, str]  # by loss
    differing: Mapping[str, Sequence[str]]
    shared: Mapping[str, Any]
    environments: Mapping[str, Sequence[str]]
    commands: Mapping[str, str]  # and the spec of each
    report_command: str


def _page(runs: list[Run], out: Path) -> Page:
    rows = groups.table(runs)
    found = [row.group for row in rows]
    kept = [run for group in found for run in group.runs]
    specs = [run.spec for run in kept]
    changed = groups.differing(specs)
    return Page(
        settings=_settings(found), data=listed(list(dict.fromkeys(spec.data for spec in specs))),
        when=max(run.environment.started or "" if run.environment else "" for run in kept)[:10],
        dropped=len(runs) - len(kept), runs=kept, rows=rows, colours=charts.colour_by_loss(found),
        differing=_differing(specs, changed), environments=_environments(kept),
        shared={key: value for key, value in specs[0].as_dict().items() if key not in changed},
        commands={_train_command(run): run.spec.to_json().rstrip() for run in kept},
        report_command=shlex.join(["curriculoss", "report", *(str(run.path) for run in runs), "--out", str(out)]),
    )  # fmt: skip


def _settings(found: Sequence[Group]) -> list[Setting]:
    by_setting, colours, numbers = groups.by_setting(found), charts.colour_by_loss(found), count(1)
    changed = set(groups.differing(some[0].spec for some in by_setting)) - {"noise", "seed", *LOSS_FIELDS}

    def drawn(figure: Figure | None) -> Markup | None:
        return None if figure is None else inline_svg(figure, f"{next(numbers)}")

    def setting(some: Sequence[Group]) -> Setting:
        rates = [group.noise_rate for group in some if group.noise_rate is not None]
        right = 100 * (1 - rates[0]) if rates else None
        reference = None if right is None else (right, f"{right:.0f} % of the labels are right")

        def chart(key: str, **how: Any) -> Markup | None:
            lines = [[[groups.number(row, key) for row in groups.rows(run)] for run in group.counted] for group in some]
            return drawn(charts.over_epochs(lines, colours=[colours[group.name] for group in some], **how))

        histories = charts.margin_histories(some)
        span = span_of(histories.values())
        return Setting(
            Comparison(some),
            _noise(some[0].spec),
            right,
            {key: value for key, value in some[0].spec.as_dict().items() if key in changed},
            {
                "test_accuracy": chart("test_accuracy", limits=(0, 104), logarithmic=False),
                "train_accuracy": chart("train_accuracy", limits=(0, 104), logarithmic=False, reference=reference),
                "accuracy_noisy": chart("accuracy_noisy", factor=100, limits=(0, None), logarithmic=False),
                "mean_weight": chart("mean_weight", form="{:.2g}"),
                "effective_learning_rate": chart("effective_learning_rate", form="{:.2g}", logarithmic=False),
                "snr": chart("snr", form="{:.2f}", reference=(1.0, "equal weights"), logarithmic=True),
            },
            {group: drawn(margin_ridges(each, span=span)) for group, each in histories.items()},
            any("noisy" in history.counts for history in histories.values()),
        )

    return [setting(some) for some in by_setting]


def _noise(spec: RunSpec) -> str:
    kind, _, rest = spec.noise.partition(":")
    return "the labels as given" if kind == "clean" else f"{kind} noise" + (f" {rest}" if rest else "")


def _cell(found: Mean, digits: int) -> Markup:
    """Mean and standard deviation with `digits` decimal places, or with two significant digits if that is more."""
    if found.mean is None:
        return Markup("–")
    if 0 < abs(found.mean) < 10 ** (1 - digits):
        digits = 1 - math.floor(math.log10(abs(found.mean)))
    spread = "" if found.std is None else f"± {found.std:.{digits}f}"
    return Markup(f"{found.mean:.{digits}f} <small>{spread}</small>")  # made here of numbers alone


def _value(given: Any) -> str:
    """A value of a spec as people write it."""
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, Mapping):
        return ", ".join(f"{key}={_value(value)}" for key, value in given.items()) or "default"
    if isinstance(given, (list, tuple)):
        return ", ".join(map(str, given)) or "none"
    return "none" if given is None else f"{given:g}" if isinstance(given, float) else str(given)


def _differing(specs: Sequence[RunSpec], changed: Mapping[str, list[Any]]) -> dict[str, list[str]]:
    """The values of each field; the name of a loss stands for its parts."""
    parts = ("loss", "params", "fix", "tau")
    shown = {"loss": list(dict.fromkeys(spec.loss_name for spec in specs))} if {*parts} & {*changed} else {}
    return shown | {key: list(map(_value, values)) for key, values in changed.items() if key not in parts}


def _environments(runs: Iterable[Run]) -> dict[str, list[str]]:
    """The values of each field, in order of appearance."""
    known = (run.environment.as_dict() for run in runs if run.environment is not None)
    shown = ({k: str(v) for k, v in each.items() if k not in HIDDEN and v is not None} for each in known)
    return groups.distinct_values(shown)


def _train_command(run: Run) -> str:
    """The command that makes a run again: by options, or by its spec if it has settings whose options are switches."""
    default = RunSpec(data=run.spec.data, loss=run.spec.loss)
    given: list[str] = []
    for key, value in run.spec.as_dict().items():
        if key == "params":
            given += [text for name, number in value.items() for text in ("-p", f"{name}={number!r}")]
        elif key in ALWAYS_SHOWN or value != default.as_dict()[key]:
            if isinstance(value, (bool, list)):
                given = ["--spec", str(run.path / "spec.json")]
                break
            given += [f"--{key.replace('_', '-')}", str(value)]
    return shlex.join(["curriculoss", "train", *given, "--out", str(run.path)])
