"""The paper's numbers: all there, as printed, and found by name."""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest

from curriculoss import noise as noises
from curriculoss.data import available
from curriculoss.paper.published import Published, find, published

PAPER = Path(__file__).parents[2] / "shared" / "paper" / "curriculum_view.tex"

COUNTS = {
    "table:ulearn": {"train_accuracy": 20, "test_accuracy": 20, "alpha_t": 16, "learning_rate": 2},
    "table:correct": {"test_accuracy": 46},
    "table:correct_symmetric": {"test_accuracy": 50},
    "table:correct_asymmetric": {"test_accuracy": 50},
    "table:correct_real": {"test_accuracy": 12, "tau": 6},
    "table:correct_param": {"tau": 40, "expected_margin": 2},
    "table:snr": {"test_accuracy": 6, "diff": 30, "snr": 30},
    "table:underfit_param": {"a": 4, "q": 7},
    "table:robust_param": {"a": 2, "q": 4},
    "fig:robust": {"test_accuracy": 3},
    "fig:robust_extend": {"test_accuracy": 9},
    "fig:robust_extend2": {"test_accuracy": 9},
    "fig:robust:overfitmae": {"learning_rate": 1},
    "fig:loss_params": {"a": 2, "q": 2},
    "app:setting": {
        **dict.fromkeys(("epochs", "learning_rate", "weight_decay", "momentum", "batch_size"), 6),
        "noise_rate": 10,
    },
}
DIGESTS = {
    "table:ulearn": "b3f9fd59351e9390",
    "table:correct": "85f7da859c954702",
    "table:correct_symmetric": "532d1f05fc230a2b",
    "table:correct_asymmetric": "690ff61ab9a70bfe",
    "table:correct_real": "84d0f8308a18223d",
    "table:correct_param": "905eaff09517789f",
    "table:snr": "594ef6bb12c52117",
    "table:underfit_param": "37ebd318613c2c62",
    "table:robust_param": "108416ed2ecec86a",
    "fig:robust": "398c87441db8ec5d",
    "fig:robust_extend": "30fea2ddf7fb4562",
    "fig:robust_extend2": "e9c20f101e341a1f",
    "fig:robust:overfitmae": "8c0cc2c528151704",
    "fig:loss_params": "97b2914185ca23ca",
    "app:setting": "81015fda1234ceb1",
}
SOURCES = list(COUNTS)


def of(source: str) -> set[Published]:
    return {row for row in published() if row.source == source}


# What the file holds.


def test_the_paper_has_as_many_numbers_as_counted_by_hand():
    counted: dict[str, Counter[str]] = {}
    for row in published():
        counted.setdefault(row.source, Counter())[row.measure] += 1
    assert counted == COUNTS
    assert len(published()) == 413


@pytest.mark.parametrize("source", SOURCES)
def test_published_numbers_never_change(source):
    digest = hashlib.sha256("\n".join(sorted(map(repr, of(source)))).encode()).hexdigest()
    assert digest.startswith(DIGESTS[source]), f"a published number of {source} has changed: {digest[:16]}"


def test_no_number_is_there_twice():
    names = Counter((row.source, row.data, row.noise, row.row, row.measure) for row in published())
    assert [name for name, times in names.items() if times > 1] == []


def test_data_and_noise_are_in_our_spelling():
    assert {row.data for row in published()} - {""} <= set(available())
    assert all(str(noises.parse(row.noise)) == row.noise for row in published() if row.noise)


def test_only_results_have_runs():
    results = {"test_accuracy", "train_accuracy", "alpha_t", "snr", "diff"}
    for row in published():
        assert (row.runs is None) == (row.statistic == "")
        assert (row.runs is not None) == (row.measure in results and not row.source.startswith("fig:")), row


# What the paper says, and where it contradicts itself.


def mean(source: str, row: str, noise: str, **where: str) -> float:
    found = find(source, row=row, noise=noise, **where)
    assert found is not None
    return found.mean


def test_tables_of_the_fixes_agree_but_for_the_shifted_mae():
    contradictions = {}
    for other in ("table:correct_symmetric", "table:correct_asymmetric"):
        for row in of("table:correct"):
            again = find(other, row=row.row, noise=row.noise)
            if again and (again.mean, again.std) != (row.mean, row.std):
                contradictions[other, row.row, row.noise] = row.mean, again.mean
    assert contradictions == {
        ("table:correct_symmetric", "MAE shift", "clean"): (68.57, 69.02),
        ("table:correct_symmetric", "MAE shift", "symmetric:0.4"): (49.95, 44.60),
        ("table:correct_symmetric", "MAE shift", "symmetric:0.8"): (13.10, 8.08),
    }


def test_underfit_and_fix_tables_disagree_about_the_same_losses():
    for row, underfit, fix in (("MAE", 9.85, 3.69), ("AGCE", 51.33, 49.27)):
        assert mean("table:ulearn", row, "clean", data="cifar100") == underfit
        assert mean("table:correct", row, "clean") == fix


def test_bold_is_the_best_of_its_column_but_for_clean_ce():
    columns = {(row.source, row.data, row.noise) for row in published() if row.bold}
    worse = []
    for source, data, kind in columns:
        column = [row for row in of(source) if (row.data, row.noise, row.measure) == (data, kind, "test_accuracy")]
        (bold,) = (row for row in column if row.bold)
        worse += [(kind, bold.row, row.row) for row in column if row.mean > bold.mean]
    assert len(columns) == 5 + 5 + 5 + 3
    assert worse == [("clean", "MAE scale", "CE")] * 3


def test_other_papers_losses_are_those_without_human_noise():
    other = {row.row for row in published() if row.from_other_paper}
    assert other == {"CE", "GCE", "NCE", "NCE+AUL"}
    assert all(find("table:correct", row=row, noise="human") is None for row in other)


def test_figures_show_other_runs_than_the_snr_table():
    compared = 0
    for row in (*of("fig:robust"), *of("fig:robust_extend"), *of("fig:robust_extend2")):
        drop = find("table:snr", row=row.row, noise=row.noise, measure="diff")
        if drop:
            compared += 1
            assert round(mean("table:snr", row.row, "clean") + drop.mean, 2) != row.mean
    assert compared == 15


# Finding a number.


def test_find_gives_the_number_or_none():
    found = find("table:correct", row="MAE scale", noise="human")
    assert found == Published(
        "table:correct", "cifar100", "human", "MAE scale", "test_accuracy", 54.70, 0.48, 3, "mean", False, True
    )
    assert find("table:ulearn", row="NCE", data="cifar10", measure="alpha_t") is None
    assert find("table:ulearn", row="MAE scale") is None


def test_find_refuses_what_is_ambiguous_or_unknown():
    with pytest.raises(ValueError, match=r"one number of table:ulearn for 'CE', got 2: data='cifar10'.*'cifar100'"):
        find("table:ulearn", row="CE", noise="clean")
    with pytest.raises(ValueError, match="one number of table:snr for 'CE', got 5"):
        find("table:snr", row="CE", measure="snr")
    with pytest.raises(AssertionError, match="the paper has no source 'table:corect'"):
        find("table:corect", row="CE")
    with pytest.raises(AssertionError, match="the paper has no measure 'accuracy'"):
        find("table:correct", row="CE", measure="accuracy")


def test_every_cell_of_the_file_is_read():
    text = files("curriculoss.paper").joinpath("published.csv").read_text(encoding="utf-8")
    head, *rows = csv.reader(text.splitlines(), strict=True)
    assert head == [field.name for field in fields(Published)] and {len(row) for row in rows} == {len(head)}
    assert {row[-1] for row in rows} | {row[-2] for row in rows} == {"yes", ""}
    assert {each.statistic for each in published()} == {"", "mean", "best"}
    assert all(math.isfinite(each.mean) for each in published())


# The same numbers read from the LaTeX, by a parser that shares nothing with the package.

HEADERS = {  # lines above the first loss
    "table:ulearn": 2,
    "table:correct": 2,
    "table:correct_symmetric": 2,
    "table:correct_asymmetric": 2,
    "table:correct_real": 2,
    "table:correct_param": 2,
    "table:snr": 3,
}
HYPERPARAMETERS = ("table:underfit_param", "table:robust_param")
FIGURES = ("fig:robust", "fig:robust_extend", "fig:robust_extend2")
WEBVISION = ("webvision-50", "webvision-200", "webvision-400")
KINDS = {"Clean": "clean", "Sym": "symmetric", "Asym": "asymmetric", "Human": "human"}
NUMBER = r"-?\d+\.\d+"


@pytest.fixture(scope="module")
def tex() -> str:
    if not PAPER.exists():
        pytest.skip(f"the paper is not at {PAPER}")
    return PAPER.read_text(encoding="utf-8")


def first(pattern: str, text: str) -> str:
    """What the pattern's group, or else all of it, matches."""
    found = re.search(pattern, text)
    return found[found.re.groups] if found else ""


def environment(tex: str, label: str) -> tuple[str, str]:
    """What stands in the table or figure of that label, and its caption."""
    bodies = re.findall(r"\\begin\{(table|figure)\}(.*?)\\end\{\1\}", tex, re.DOTALL)
    (body,) = (body for _, body in bodies if rf"\label{{{label}}}" in body)
    return body, body[body.rindex(r"\caption{") :]


def cells(body: str) -> list[list[str]]:
    """The tabular's cells. One that spans several columns is repeated in each."""
    (tabular,) = re.findall(r"\\begin\{tabular\}\{.*?\}\n(.*?)\\end\{tabular\}", body, re.DOTALL)
    lines = []
    for line in tabular.replace(r"\midrule", "").split(r"\\"):
        texts = []
        for cell in map(str.strip, line.split("&")):
            span = re.fullmatch(r"\\multicolumn\{(\d)\}\{.*?\}\{(.*)\}", cell)
            texts += [span[2]] * int(span[1]) if span else [cell]
        lines.append(texts)
    return [texts for texts in lines if texts != [""]]


def printed_noise(text: str) -> str:
    kind = KINDS.get(first("Clean|Asym|Sym|Human", text), "")
    return f"{kind}:{first('0[.][1-9]', text)}" if kind.endswith("symmetric") else kind


def printed_data(text: str) -> str:
    classes = first(r"k=(\d+)", text)
    return f"webvision-{classes}" if classes else first(r"CIFAR\d+|MNIST", text).lower()


def printed_measure(text: str) -> str:
    words = {"Train": "train_accuracy", r"\alpha_t": "alpha_t", "{diff}": "diff", "{snr}": "snr"}
    return next((measure for word, measure in words.items() if word in text), "test_accuracy")


def printed_runs(tex: str, caption: str) -> tuple[int | None, str]:
    if "Addition results to" in caption:
        return printed_runs(tex, environment(tex, first(r"\\cref\{(.*?)\}", caption))[1])
    if "a single run" in caption:
        return 1, "mean"
    runs = first(r"(\d) (?:different )?runs", caption)
    return (int(runs), "best" if "the best of" in caption else "mean") if runs else (None, "")


def table(tex: str, label: str) -> Iterator[Published]:
    body, caption = environment(tex, label)
    lines = cells(body)
    headers = [" ".join(column) for column in zip(*lines[: HEADERS[label]], strict=True)]
    runs, statistic = printed_runs(tex, caption)
    for name, *values in lines[HEADERS[label] :]:
        row = re.sub(r"\\textsuperscript\{.*\}", "†" if r"{\textdagger}" in name else "", name)
        for header, value in zip(headers[1:], values, strict=True):
            if value == "/":
                continue
            number, *deviation = map(float, re.findall(NUMBER, value.replace(r"\hspace{0.5em}", "")))
            yield Published(
                source=label,
                data=printed_data(header) or printed_data(caption),
                noise="clean" if "With clean labels" in caption else printed_noise(header),
                row=row,
                measure="tau" if label == "table:correct_param" else printed_measure(header),
                mean=number,
                std=deviation[0] if deviation else None,
                runs=runs,
                statistic=statistic,
                from_other_paper="daggerdbl" in name,
                bold="textbf" in value,
            )


def setting(source: str, measure: str, number: str, data: str = "", noise: str = "", row: str = "") -> Published:
    return Published(source, data, noise, row, measure, float(number), None, None, "", False, False)


def aside(tex: str, label: str) -> Iterator[Published]:
    """The settings in a table's caption or header."""
    body, caption = environment(tex, label)
    if label == "table:ulearn":
        for data in ("cifar10", "cifar100"):
            yield setting(label, "learning_rate", first(rf"learning rate \$\\eta=({NUMBER})", caption), data, "clean")
    if label == "table:correct_param":
        for number, data in re.findall(rf"\[\\Delta_y\] = ({NUMBER})\$ on (CIFAR\d+)", caption):
            yield setting(label, "expected_margin", number, data.lower())
    if label == "table:correct_real":
        classes, taus = cells(body)[:2]
        for column, tau in zip(classes[1:], taus[1:], strict=True):
            for row in ("MAE shift", "MAE scale"):
                yield setting(label, "tau", first(NUMBER, tau), printed_data(column), row=row)


def hyperparameters(tex: str, label: str) -> Iterator[Published]:
    body, caption = environment(tex, label)
    (_, *losses), *lines = cells(body)
    clean = "clean" if "without label noise" in caption else ""
    for name, *values in lines:
        for loss, value in zip(losses, values, strict=True):
            if value != "/":
                row = loss.replace(r"\textsuperscript{\textdagger}", "†")
                yield setting(label, name.strip("$"), value, printed_data(caption), clean, row)


def figure(tex: str, label: str) -> Iterator[Published]:
    body, caption = environment(tex, label)
    for row, kind, number in re.findall(rf"\\caption\{{([A-Z]+)(.*): ({NUMBER})\}}", body):
        where = printed_noise(kind or caption.replace("symmetric label noise", "Sym"))
        yield setting(label, "test_accuracy", number, "cifar10", where, row)


def plots(tex: str) -> Iterator[Published]:
    """What the other figures were drawn with."""
    (number,) = re.findall(rf"\\caption\{{\$\\alpha=({NUMBER})\$ .*\n *\\label\{{fig:robust:overfitmae\}}", tex)
    yield setting("fig:robust:overfitmae", "learning_rate", number, "mnist")
    for row, name, value in re.findall(rf"\\caption\{{(\w+), \$([aq])=({NUMBER})\$\}}", tex):
        yield setting("fig:loss_params", name, value, row=row)


def settings(tex: str) -> Iterator[Published]:
    start = tex.index(r"\label{app:setting}")
    text = tex[start : tex.index(r"\section", start)]
    epochs = first(r"for (\d+, \d+, \d+ and \d+) epochs on MNIST, CIFAR10, CIFAR100 and WebVision", text)
    rates = re.search(r"are (\S+) on MNIST and CIFAR10, (\S+) on CIFAR100, and (\S+) on WebVision\. Weight", text)
    decays = re.findall(r"\$(?:(\d) .times )?10\^\{(-\d)\}\$ on (\w+)", text)
    each = {
        "epochs": dict(zip(("mnist", "cifar10", "cifar100", "webvision"), re.findall(r"\d+", epochs), strict=True)),
        "learning_rate": {"mnist": rates[1], "cifar10": rates[1], "cifar100": rates[2], "webvision": rates[3]},
        "weight_decay": {data.lower(): f"{factor or 1}e{power}" for factor, power, data in decays},
    }
    each["momentum"] = dict.fromkeys(each["epochs"], first(rf"momentum ({NUMBER})", text))
    each["batch_size"] = dict.fromkeys(each["epochs"], first(r"batch size (\d+)", text))
    for measure, numbers in each.items():
        for name, number in numbers.items():
            for data in WEBVISION if name == "webvision" else [name]:
                yield setting("app:setting", measure, number, data)
    symmetric, asymmetric = re.findall(r"\\eta \\in \\\{(.*?)\\\}", text)
    for kind, numbers in (("symmetric", symmetric), ("asymmetric", asymmetric)):
        for number in numbers.split(", "):
            yield setting("app:setting", "noise_rate", number, noise=f"{kind}:{number}")
    for data in ("cifar10", "cifar100"):
        yield setting("app:setting", "noise_rate", first(rf"both leading to \$\\eta = ({NUMBER})", text), data, "human")


@pytest.mark.parametrize("source", SOURCES)
def test_numbers_are_those_of_the_latex(tex, source):
    if source in HEADERS:
        expected = {*table(tex, source), *aside(tex, source)}
    elif source in HYPERPARAMETERS:
        expected = {*hyperparameters(tex, source)}
    elif source in FIGURES:
        expected = {*figure(tex, source)}
    else:
        expected = {row for row in (*plots(tex), *settings(tex)) if row.source == source}
    assert of(source) == expected


def test_no_decimal_of_the_paper_is_left_out(tex):
    layout = rf"{NUMBER}(?=\\textwidth|em|mm)|arraystretch\}}\{{{NUMBER}"
    text = re.sub(layout, "", tex[tex.index(r"\begin{document}") :])
    numbers = {float(number) for number in re.findall(NUMBER, text)}
    assert numbers - {row.mean for row in published()} - {row.std for row in published()} == set()
