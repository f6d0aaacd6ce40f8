"""The page: all that there is to say about some runs, put into the template and written as one file."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from curriculoss.figures import MARGIN_COLOURS, MarginHistory, margin_ridges, span_of
from curriculoss.initial import percent
from curriculoss.report import pictures, words
from curriculoss.report.records import (
    LOSS_FIELDS,
    Group,
    Mean,
    differing,
    failure,
    groups,
    loss_key,
    names,
    rows,
    settings,
    table,
    verdicts,
)
from curriculoss.training.spec import RunSpec
from curriculoss.training.store import Run, write_text

# Options of `curriculoss train` by field; what else a spec may say is said by --spec.
OPTIONS = {
    "data": "--data", "noise": "--noise", "loss": "--loss", "fix": "--fix", "tau": "--tau", "subset": "--subset",
    "network": "--network", "width": "--width", "epochs": "--epochs", "learning_rate": "--lr", "seed": "--seed",
}  # fmt: skip


def build(runs: Sequence[Run], out: Path) -> Path:
    """Write the page about these runs, finished or not, to the file `out`."""
    if not runs:
        raise ValueError("a report expects at least one run, got none")
    text = _template().render(**_content(list(runs), Path(out)))
    write_text(Path(out), text)
    return Path(out)


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("curriculoss.report", "."),
        autoescape=True,  # names, paths and notes are anybody's
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja")


def headline(runs: Iterable[Run]) -> str:
    """In one line, which losses memorise and which underfit, in the first setting of the runs."""
    found = groups(runs)
    return words.headline(settings(found)[0], names(found))


def _content(runs: list[Run], out: Path) -> dict[str, Any]:
    found = groups(runs)
    called, colours, by_setting = names(found), pictures.colour_by_loss(found), settings(found)
    kept = [run for group in found for run in group.runs]
    specs = [run.spec for run in kept]
    drawn = _Drawn()
    leading = by_setting[0]
    return {
        "title": words.headline(leading, called),
        "lede": _lede(leading, len(by_setting) > 1),
        "data": words.listed(list(dict.fromkeys(spec.data for spec in specs))),
        "when": max((str(_environment(run).get("started", "")) for run in kept), default="")[:10],
        "count": words.counted(len(kept), "run"),
        "unfinished": _unfinished(found),
        "dropped": len(runs) - len(kept),
        "rules": words.RULES,
        "losses": [{"name": name, "colour": pictures.variable(colours[key])} for key, name in called.items()],
        "settings": [_setting(some, by_setting, called, colours, drawn) for some in by_setting],
        "table": _table(found, called, colours),
        "margin_colours": {name: pictures.variable(colour) for name, colour in MARGIN_COLOURS.items()},
        "differing": _differing(specs),
        "shared": _shared(specs),
        "unknown": any(group.spec.noise == "clean" and group.noise_rate is None for group in found),
        "runs": [_run(run, called[loss_key(group)]) for group in found for run in group.runs],
        "environments": _environments(kept),
        "commands": [{"command": _command(run), "spec": run.spec.to_json().rstrip()} for run in kept],
        "again": shlex.join(["curriculoss", "report", *(str(run.path) for run in runs), "--out", str(out)]),
    }


def _unfinished(found: Sequence[Group]) -> str:
    failed = sum(len(group.failures) for group in found)
    count = sum(len(_open(group)) for group in found)
    said = [f"{words.counted(failed, 'run')} diverged."] if failed else []
    if count:
        are = "is" if count == 1 else "are"
        said.append(f"{words.counted(count, 'run')} {are} not finished: numbers are those of the last epoch so far.")
    return " ".join(said)


def _open(group: Group) -> list[Run]:
    """Those that may go on."""
    return [run for run in group.runs if not run.finished and run not in group.failures]


class _Drawn:
    """Figures with ids that no other figure of the page has."""

    count = 0

    def __call__(self, figure: Figure | None) -> Markup | None:
        if figure is None:
            return None
        self.count += 1
        return Markup(pictures.inline_svg(figure, f"f{self.count}-"))  # made here, of numbers alone


def _lede(some: Sequence[Group], several: bool) -> str:
    spec, rate = some[0].spec, some[0].noise_rate
    wrong = "" if rate is None else f", where {percent(rate)} of the training labels are wrong"
    data = f"{spec.data} with {_noise(spec)}{wrong}"
    epochs = [group.epochs for group in some]
    up_to = "up to " if min(epochs) < max(epochs) else ""
    text = f"On {data}, after {up_to}{words.counted(max(epochs), 'epoch')}."
    return text + (" The other settings are below." if several else "")


def _noise(spec: RunSpec) -> str:
    if spec.noise == "clean":
        return "labels as they are"
    kind, _, rest = spec.noise.partition(":")
    return f"{kind} noise" + (f" {rest}" if rest else "")


def _setting(
    some: Sequence[Group],
    by_setting: Sequence[Sequence[Group]],
    called: Mapping[str, str],
    colours: Mapping[str, str],
    drawn: _Drawn,
) -> dict[str, Any]:
    """Losses on the same data, noise, network and so on."""
    rates = [group.noise_rate for group in some if group.noise_rate is not None]
    right = 100 * (1 - rates[0]) if rates else None
    histories = {loss_key(group): pictures.margin_history(group) for group in some}
    span = span_of(history for history in histories.values() if history is not None)
    changed = differing(few[0].spec for few in by_setting)
    first = some[0].spec
    said = [_noise(first)] if "noise" in changed else []
    others = [key for key in changed if key not in ("noise", "seed", *LOSS_FIELDS)]
    said += [f"{key.replace('_', ' ')} {_plain(first.as_dict()[key])}" for key in others]
    percents: dict[str, Any] = {"limits": (0, 104), "logarithmic": False}
    return {
        "name": ", ".join(said),
        "headline": words.headline(some, called),
        "losses": [
            {
                "name": called[loss_key(group)],
                "colour": pictures.variable(colours[loss_key(group)]),
                "verb": words.verb(group, some),
                "sentence": words.sentence(group),
                "state": None if group.diverged else _state(group),  # the verb says it
                "note": group.note,
                "ridges": drawn(_ridges(history, span)),
                "about": _about(group, history),
                "apart": history is not None and "noisy" in history.counts,
                "verdicts": [{"when": when, "text": text} for when, text in verdicts(group)],
            }
            for group in some
            for history in [histories[loss_key(group)]]
        ],
        "charts": {
            "test": drawn(pictures.lines(some, "test_accuracy", colours, **percents)),
            "train": drawn(
                pictures.lines(
                    some,
                    "train_accuracy",
                    colours,
                    reference=None if right is None else (right, f"{right:.0f} % of the labels are right"),
                    **percents,
                )
            ),
            "wrong": drawn(
                pictures.lines(some, "accuracy_noisy", colours, factor=100, limits=(0, None), logarithmic=False)
            ),
            "weight": drawn(pictures.lines(some, "mean_weight", colours, form="{:.2g}")),
            "rate": drawn(pictures.lines(some, "effective_learning_rate", colours, form="{:.2g}", logarithmic=False)),
            "snr": drawn(
                pictures.lines(some, "snr", colours, form="{:.2f}", reference=(1.0, "equal weights"), logarithmic=True)
            ),
        },
        "right": right,
        "truth": "as given" if right is None and first.noise == "clean" else "true",
    }


def _ridges(history: MarginHistory | None, span: tuple[float, float]) -> Figure | None:
    return None if history is None or not history.epochs else margin_ridges(history, span=span)


def _about(group: Group, history: MarginHistory | None) -> str:
    """What a panel of ridges does not show, and why."""
    if history is None or not history.epochs:
        return "It diverged before an epoch was over." if group.diverged else "No epoch is over yet."
    said = []
    if history.curriculum is None:
        fixed = group.spec.fix is not None
        why = "its fix was set from measured margins" if fixed else "its weight depends on more than the margin"
        said.append(f"No w(Δ): {why}.")
    if len(group.counted) > 1:
        said.append("The first of the seeds.")
    return " ".join(said)


def _state(group: Group) -> str | None:
    """None if there is nothing to be said: all are finished."""
    said = [group.failed] if group.failed else []
    if left := len(_open(group)):
        alone = f"not finished: epoch {group.epochs} of {group.spec.epochs}"
        said.append(alone if len(group.runs) == 1 else f"{left} of {len(group.runs)} seeds not finished")
    return ", ".join(said) or None


def _table(found: Sequence[Group], called: Mapping[str, str], colours: Mapping[str, str]) -> dict[str, Any]:
    digits = {"test_accuracy": 1, "train_accuracy": 1, "snr": 2, "mean_weight": 3}
    lines = []
    for row, group in zip(table(run for each in found for run in each.runs), found, strict=True):
        key = loss_key(group)
        cells = {k: _cell(group.over_seeds(k), after) for k, after in digits.items()}
        lines.append(
            {
                **row,
                **cells,
                "loss": called[key],
                "colour": pictures.variable(colours[key]),
                "diff": "–" if row["diff"] is None else f"{row['diff']:+.1f}".replace("-", "−"),
                "settings": ", ".join(f"{k.replace('_', ' ')} {_plain(v)}" for k, v in row["settings"].items()),
                "state": _state(group),
            }
        )
    return {
        "rows": lines,
        "seeds": any(len(group.counted) > 1 for group in found),
        "noises": len({group.spec.noise for group in found}) > 1,
        "diffs": any(row["diff"] != "–" for row in lines),
        "others": any(row["settings"] for row in lines),
    }


def _cell(found: Mean, digits: int) -> dict[str, str]:
    """A number with so many digits after the point or, if that leaves it fewer than two, with two."""
    if found.mean is None:
        return {"mean": "–", "std": ""}
    if 0 < abs(found.mean) < 10 ** (1 - digits):
        digits = 1 - math.floor(math.log10(abs(found.mean)))
    return {
        "mean": f"{found.mean:.{digits}f}",
        "std": "" if found.std is None else f"± {found.std:.{digits}f}",
    }


def _plain(given: Any) -> str:
    """A value of a spec as people write it."""
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, Mapping):
        return ", ".join(f"{key}={value:g}" for key, value in given.items()) or "default"
    if isinstance(given, (list, tuple)):
        return ", ".join(map(str, given)) or "none"
    return "none" if given is None else f"{given:g}" if isinstance(given, float) else str(given)


def _differing(specs: Sequence[RunSpec]) -> list[dict[str, Any]]:
    """Field by field, without the parts of a loss that its name tells."""
    found = differing(specs)
    parts = [key for key in ("loss", "params", "fix", "tau") if key in found]
    shown: dict[str, list[str]] = {}
    if parts:
        shown["loss"] = list(dict.fromkeys(spec.loss_name for spec in specs))
    for key, values in found.items():
        if key not in parts:
            shown[key] = [_plain(value) for value in values]
    return [{"field": key.replace("_", " "), "values": values} for key, values in shown.items()]


def _shared(specs: Sequence[RunSpec]) -> list[dict[str, str]]:
    changed = differing(specs)
    kept = {key: value for key, value in specs[0].as_dict().items() if key not in changed}
    return [{"field": key.replace("_", " "), "value": _plain(value)} for key, value in kept.items()]


def _run(run: Run, called: str) -> dict[str, Any]:
    done, failed = len(rows(run)), failure(run)
    early = run.finished and done < run.spec.epochs
    return {
        "path": str(run.path),
        "loss": called,
        "noise": run.spec.noise,
        "seed": run.spec.seed,
        "epochs": f"{done} of {run.spec.epochs}" + (", stopped early" if early else ""),
        "state": None if run.finished else "not finished" if failed is None else str(failed),
        "hash": run.spec.hash,
        "note": str(run.result.get("note") or "") if run.finished else "" if failed is None else failed.reason,
    }


def _environment(run: Run) -> dict[str, Any]:
    return run.environment if (run.path / "environment.json").exists() else {}


def _environments(runs: Iterable[Run]) -> list[dict[str, str]]:
    """What is the same for all stands once; what is not, with all its values."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for key, value in _environment(run).items():
            if key in ("command", "started") or value is None:
                continue
            text = value if isinstance(value, str) else json.dumps(value)
            if text not in found.setdefault(key, []):
                found[key].append(text)
    return [{"field": key, "value": ", ".join(values)} for key, values in found.items()]


def _command(run: Run) -> str:
    """By options where they suffice."""
    return shlex.join(["curriculoss", "train", *_options(run), "--out", str(run.path)])


def _options(run: Run) -> Iterator[str]:
    spec = run.spec
    fields = {each.name: getattr(spec, each.name) for each in dataclasses.fields(spec)}
    plain = RunSpec(data=spec.data, loss=spec.loss, params=spec.params)
    changed = {key: value for key, value in fields.items() if value != getattr(plain, key)}
    if not set(changed) <= set(OPTIONS):
        yield from ("--spec", str(run.path / "spec.json"))
        return
    always = {"data": spec.data, "noise": spec.noise, "loss": spec.loss, "epochs": spec.epochs, "seed": spec.seed}
    for key, option in OPTIONS.items():
        if key in always or key in changed:
            yield from (option, str(fields[key]))
        if key == "loss":
            for name, value in spec.params.items():
                yield from ("-p", f"{name}={value!r}")
