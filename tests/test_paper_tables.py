"""The paper's tables: every number of its own, ours computed as announced, and four forms that say the same."""

from __future__ import annotations

import csv
import math
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from curriculoss._files import write_table
from curriculoss.losses import MAE, registry
from curriculoss.paper import formulae, render, result_tables
from curriculoss.paper.artefacts import ARTEFACTS, Artefact
from curriculoss.paper.epochs import EPOCHS_FILE, MEASURES, RunRecords
from curriculoss.paper.experiments import CE, CLEAN, NCE_MAE, NCE_MAE_UNIT, Cell
from curriculoss.paper.published import published
from curriculoss.paper.render import Column, Line, TableContent
from curriculoss.paper.scales import CPU, SMOKE

RESULTS = ("train_accuracy", "test_accuracy", "alpha_t", "diff", "snr")
COUNTS = {"table:underfit": 56, "table:fix": 46, "table:fix-symmetric": 50, "table:fix-asymmetric": 50,
          "table:webvision": 12, "table:snr": 66}  # fmt: skip
UNDERFIT, SNR, FIX = ARTEFACTS["table:underfit"], ARTEFACTS["table:snr"], ARTEFACTS["table:fix"]
PLACES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "webvision-50": "WebVision 50",
          "webvision-200": "WebVision 200", "webvision-400": "WebVision 400"}  # fmt: skip
ACCURACIES = ("train_accuracy", "test_accuracy")
COMPILER = shutil.which("pdflatex") or shutil.which("tectonic")


def known(folder, runs, scale=CPU):
    """Records as a file has them: `runs` gives the last epoch of (cell, seed). The epoch before was better in all."""
    rows = []
    for (cell, seed), last in runs.items():
        spec = scale.spec(cell, seed)
        named = {"run": spec.hash, "data": spec.data, "noise": spec.noise, "loss": spec.loss_name, "seed": seed}
        values = {**dict.fromkeys(MEASURES, 1.0), **last}
        better = {key: None if value is None else value + 1 for key, value in values.items()}
        rows += [{**named, "epoch": 1, **better}, {**named, "epoch": 2, **values}]
    if rows:
        write_table(folder / EPOCHS_FILE, rows)
    return RunRecords.read(scale, folder)


def everything(folder, artefact, scale=SMOKE, seeds=2):
    """All runs, no two of which have a number in common."""
    runs = {}
    for cell in scale.shown(artefact.cells):
        for seed in range(seeds):
            at = len(runs)
            runs[cell, seed] = {
                "train_accuracy": 20 + at / 7,
                "test_accuracy": 10 + at / 9,
                "effective_learning_rate": (1 + at) / 3e4,
                "snr": 0.3 + at / 11,
            }
    return known(folder, runs, scale)


def cell_of(artefact: Artefact, row: str, data: str, noise: str = CLEAN) -> Cell:
    (cell,) = (each for each in artefact.cells if (each.row.name, each.data, each.noise) == (row, data, noise))
    return cell


def entry_of(found, row, data, measure, noise=CLEAN):
    (entry,) = (each for each in found if (each.cell.row.name, *each.place) == (row, data, noise, measure))
    return entry


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> dict[str, RunRecords]:
    """All runs of each table, with two seeds."""
    return {name: everything(tmp_path_factory.mktemp("all"), ARTEFACTS[name]) for name in COUNTS}


@pytest.fixture(scope="module", params=[*COUNTS, *formulae.TABLES])
def table(request, complete) -> TableContent:
    """Each table, of results that are all there."""
    name = request.param
    return (
        formulae.TABLES[name]() if name in formulae.TABLES else result_tables.table(ARTEFACTS[name], complete[name], 2)
    )


# Numbers


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_every_number_of_the_papers_table_is_in_exactly_one_entry(tmp_path, name, count):
    found = result_tables.entries(ARTEFACTS[name], known(tmp_path, {}), 3)
    source = ARTEFACTS[name].source
    expected = [each for each in published() if each.source == source and each.measure in RESULTS]
    ours = [
        (*each.place[:2], each.cell.row.name, each.measure, each.printed.mean, each.printed.std)
        for each in found
        if each.printed is not None
    ]
    assert Counter(ours) == Counter((x.data, x.noise, x.row, x.measure, x.mean, x.std) for x in expected)
    assert len(expected) == count
    places = Counter((each.cell.row.name, *each.place) for each in found)
    assert set(places.values()) == {1}


def test_accuracies_and_alpha_t_are_means_of_the_last_epoch(tmp_path):
    cell = cell_of(UNDERFIT, "CE", "cifar10")
    accuracies, rates = (60.0, 62.0, 67.0), (0.001, 0.002, 0.003)
    runs = {
        (cell, seed): {"test_accuracy": accuracies[seed], "effective_learning_rate": rates[seed]} for seed in range(3)
    }
    found = result_tables.entries(UNDERFIT, known(tmp_path, runs), 3)
    test = entry_of(found, "CE", "cifar10", "test_accuracy")
    assert (test.ours.n, test.ours.mean, test.best, test.paper) == (3, 63, 67, 92.96)
    assert test.ours.std == pytest.approx(math.sqrt(13))
    assert test.csv_row()["difference"] == pytest.approx(63 - 92.96)
    alpha = entry_of(found, "CE", "cifar10", "alpha_t")
    assert (alpha.ours.mean, alpha.ours.std, alpha.best) == pytest.approx((20, 10, 30))
    first = entry_of(result_tables.entries(UNDERFIT, known(tmp_path, runs), 2), "CE", "cifar10", "test_accuracy")
    assert (first.ours.n, first.ours.mean) == (2, 61)


def test_snr_is_compared_by_the_best_run(tmp_path):
    clean, noisy = cell_of(SNR, "CE", "cifar10"), cell_of(SNR, "CE", "cifar10", "asymmetric:0.2")
    runs = {(clean, seed): {"test_accuracy": value} for seed, value in enumerate((70.0, 80.0, 60.0))}
    for seed, (value, snr) in enumerate(((50.0, 0.5), (40.0, 0.9), (45.0, 0.7))):
        runs[noisy, seed] = {"test_accuracy": value, "snr": snr}
    found = result_tables.entries(SNR, known(tmp_path, runs), 3)
    accuracy = entry_of(found, "CE", "cifar10", "test_accuracy")
    assert (accuracy.ours.mean, accuracy.best, accuracy.compared) == (70, 80, 80)
    diff = entry_of(found, "CE", "cifar10", "diff", "asymmetric:0.2")
    assert (diff.ours.n, diff.ours.mean, diff.best) == (3, -25, -30)
    assert diff.ours.std == pytest.approx(math.sqrt(175))
    assert diff.csv_row()["difference"] == pytest.approx(-30 + 7.06)
    snr = entry_of(found, "CE", "cifar10", "snr", "asymmetric:0.2")
    assert (snr.ours.mean, snr.best) == (pytest.approx(0.7), 0.5)  # of the run with 50 %, though another has more
    shown = render.table_text(result_tables.table(SNR, known(tmp_path, runs), 3))
    assert "−25.00 ± 13.23" in shown and "best −30.00" in shown and "paper −7.06" in shown
    assert "the best of 5 runs" in shown


def test_diff_is_of_seeds_that_have_both_runs(tmp_path):
    clean, noisy = cell_of(SNR, "MAE", "cifar10"), cell_of(SNR, "MAE", "cifar10", "human")
    runs = {(clean, 0): 70.0, (clean, 1): 90.0, (noisy, 0): 50.0, (noisy, 2): 60.0}
    records = known(tmp_path, {key: {"test_accuracy": value} for key, value in runs.items()})
    diff = entry_of(result_tables.entries(SNR, records, 3), "MAE", "cifar10", "diff", "human")
    assert (diff.ours.n, diff.ours.mean, diff.ours.std, diff.best) == (1, -20, None, -20)


def test_a_run_without_a_value_does_not_count(tmp_path):
    noisy = cell_of(SNR, "MAE", "cifar10", "human")
    records = known(tmp_path, {(noisy, 0): {"snr": None, "test_accuracy": 90.0}, (noisy, 1): {"snr": 2.0}})
    snr = entry_of(result_tables.entries(SNR, records, 2), "MAE", "cifar10", "snr", "human")
    assert (snr.ours.n, snr.ours.mean, snr.best) == (1, 2, 2)


@pytest.mark.parametrize("name", COUNTS)
def test_what_is_missing_says_so_and_keeps_the_papers_number(tmp_path, name):
    found = result_tables.entries(ARTEFACTS[name], known(tmp_path, {}), 3)
    assert {(each.ours.n, each.ours.mean, each.ours.std, each.best, each.vs_ce) for each in found} == {(0, *[None] * 4)}
    shown = render.table_text(result_tables.table(ARTEFACTS[name], known(tmp_path, {}), 3))
    assert shown.count("  not run") == len(found)
    assert "not run: " in shown and "n = 0" in shown
    assert all(f"paper {render_number(each.paper)}" in shown for each in found if each.paper is not None)


def render_number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def test_a_cell_with_fewer_runs_says_how_many(tmp_path):
    cells = [cell_of(FIX, row, "cifar100") for row in ("CE", "MAE")]
    runs = {(cells[0], 0): 50.0, (cells[0], 1): 60.0, (cells[0], 2): 61.0, (cells[1], 0): 40.0, (cells[1], 2): 44.0}
    records = known(tmp_path, {key: {"test_accuracy": value} for key, value in runs.items()})
    shown = render.table_text(result_tables.table(FIX, records, 3))
    assert "57.00 ± 6.08 " in shown and "42.00 ± 2.83, n=2 " in shown and f"scale {CPU.name}, n = 3" in shown
    assert "n=3" not in shown and "planned" not in shown
    assert f"scale {CPU.name}, n = 3 of 4 planned" in render.table_text(result_tables.table(FIX, records, 4))


def test_hyperparameters_are_told(tmp_path):
    (note,) = (x for x in result_tables.table(FIX, known(tmp_path, {}), 1).notes if x.startswith("Hyperparameters: "))
    assert "GCE q = 0.7; NCE+AUL alpha = 10, beta = 0.015, a = 6, q = 3; AGCE a = 0.1, q = 0.1; " in note
    (note,) = (
        x for x in result_tables.table(UNDERFIT, known(tmp_path, {}), 1).notes if x.startswith("Hyperparameters: ")
    )
    assert "GCE q = 0.3; " in note


def test_tau_is_the_papers_for_each_noise(tmp_path):
    for name in ("table:fix", "table:fix-symmetric", "table:fix-asymmetric"):
        for entry in result_tables.entries(ARTEFACTS[name], known(tmp_path, {}), 1):
            fixed = entry.cell.row.name.endswith((" shift", " scale"))
            printed = {x.mean for x in published() if (x.source, x.row, x.noise) == (
                "table:correct_param", entry.cell.row.name, entry.cell.noise)}  # fmt: skip
            assert {entry.tau} == (printed if fixed else {None})
    webvision = result_tables.entries(ARTEFACTS["table:webvision"], known(tmp_path, {}), 1)
    taus = {(x.row, x.data): x.mean for x in published() if x.source == "table:correct_real" and x.measure == "tau"}
    assert {(x.cell.row.name, x.cell.data): x.tau for x in webvision if x.tau is not None} == taus


def test_marks(complete):
    found = result_tables.entries(UNDERFIT, complete[UNDERFIT.name], 2)
    assert {x.cell.row.name for x in found if x.bound} == {"NCE", "NCE+MAE", "NCE+MAE (MAE × 4)"}
    assert {x.measure for x in found if x.bound} == {"alpha_t"}
    table = result_tables.table(UNDERFIT, complete[UNDERFIT.name], 2)
    labels = {line.label for line in table.lines}
    assert {"NCE+MAE (MAE × 4)*", "AUL†", "AGCE†", "CE"} <= labels
    assert {name: re.findall("[†‡*≤]", note) for note in table.notes for name in "†*≤" if note.startswith(name)} == {
        "†": ["†"], "*": ["*"], "≤": ["≤"]}  # fmt: skip
    fix = result_tables.table(FIX, complete[FIX.name], 2)
    assert [line.label for line in fix.lines if line.label.endswith("‡")] == ["CE‡", "GCE‡", "NCE‡", "NCE+AUL‡"]
    assert [line.label for line in fix.lines if line.label.endswith("*")] == ["MAE logit bias*"]
    assert any("Zhou et al." in note for note in fix.notes)
    assert not any("Zhou et al." in note for note in table.notes)


def closeness(folder, plain, unit, cross=(90.0, 79.99)):
    """The notes on NCE+MAE, given its train and test accuracy on CIFAR-100 in both variants, and CE's."""
    given = {NCE_MAE.name: plain, NCE_MAE_UNIT.name: unit, CE.name: cross}
    runs = {
        (cell_of(UNDERFIT, row, "cifar100"), 0): dict(zip(ACCURACIES, values, strict=True))
        for row, values in given.items()
        if values
    }
    notes = result_tables.table(UNDERFIT, known(folder, runs), 1).notes
    (few,) = (note for note in notes if note.startswith("NCE+MAE on CIFAR-10,"))
    assert "open until" in few
    (many,) = (note for note in notes if note.startswith("NCE+MAE on CIFAR-100,"))
    return many


def test_the_note_on_mae_times_four_follows_the_numbers(tmp_path):
    # The paper's NCE+MAE on CIFAR-100 has 92.30 and 68.28, its CE 99.97 and 71.02: −7.67 and −2.74 relative to CE.
    plain, unit = (90.30, 64.28), (91.30, 70.28)  # 0.30, −15.71 and 1.30, −9.71
    note = closeness(tmp_path, plain, unit)
    assert "MAE plain is 10.47 points from the paper's and MAE × 4 7.97; MAE × 4 is closer." in note
    assert "MAE × 4 10.47; MAE plain is closer." in closeness(tmp_path, unit, plain)
    assert "both are equally close." in closeness(tmp_path, plain, plain)
    assert "open until CE and both variants have run." in closeness(tmp_path, plain, ())


def test_each_number_is_also_relative_to_ce_in_its_column(complete):
    for name in COUNTS:
        found = result_tables.entries(ARTEFACTS[name], complete[name], 2)
        of_ce = {each.place: each for each in found if each.cell.row == CE}
        for each in found:
            other = of_ce[each.place]
            for mine, ours, theirs in ((each.vs_ce, each.compared, other.compared),
                                       (each.paper_vs_ce, each.paper, other.paper)):  # fmt: skip
                if each is other or ours is None or theirs is None:
                    assert mine is None
                else:
                    ratio = each.measure in ("alpha_t", "snr")
                    assert mine == pytest.approx(ours / theirs if ratio else ours - theirs)


def test_a_cell_says_how_far_ours_and_the_papers_are_from_ce(tmp_path):
    accuracies = {"CE": 20.0, "MAE scale": 31.5}
    runs = {(cell_of(FIX, row, "cifar100", "symmetric:0.4"), 0): {"test_accuracy": x} for row, x in accuracies.items()}
    assert "vs CE +11.50 (+20.65)" in render.table_text(result_tables.table(FIX, known(tmp_path, runs), 1))
    rates = {"CE": 0.004, "MAE": 0.001, "NCE": 0.002}
    runs = {(cell_of(UNDERFIT, row, "cifar10"), 0): {"effective_learning_rate": x} for row, x in rates.items()}
    shown = render.table_text(result_tables.table(UNDERFIT, known(tmp_path, runs), 1))
    assert "vs CE × 0.25 (× 0.089)" in shown and "vs CE ≤ × 0.50 (/)" in shown


# Forms


def csv_rows(table: TableContent, folder) -> list[dict[str, str]]:
    with render.write_forms(table, folder)[1].open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", COUNTS)
def test_csv_has_the_same_numbers(complete, name, tmp_path):
    found = result_tables.entries(ARTEFACTS[name], complete[name], 2)
    rows = csv_rows(result_tables.table(ARTEFACTS[name], complete[name], 2), tmp_path)
    for row, entry in zip(rows, found, strict=True):
        assert (row["row"], row["data"], row["noise"], row["measure"]) == (entry.cell.row.name, *entry.place)
        values = {"tau": entry.tau, "n": 2, "mean": entry.ours.mean, "std": entry.ours.std, "best": entry.best,
                  "paper": entry.paper, "vs_ce": entry.vs_ce, "paper_vs_ce": entry.paper_vs_ce}  # fmt: skip
        for key, value in values.items():
            assert (float(row[key]) if row[key] else None) == (value and pytest.approx(value, abs=1e-6))
        assert row["vs_ce_is"] == ("ratio" if entry.measure in ("alpha_t", "snr") else "difference")


def test_csv_of_an_open_cell(tmp_path):
    row = csv_rows(result_tables.table(ARTEFACTS["table:webvision"], known(tmp_path, {}), 1), tmp_path)[0]
    assert {key: value for key, value in row.items() if value} == {
        "row": "CE", "data": "webvision-50", "measure": "test_accuracy", "n": "0", "paper": "66.4",
        "vs_ce_is": "difference", "remark": "not run"}  # fmt: skip


def markdown_cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_is_rectangular(table):
    rows = markdown_cells(render.markdown(table))
    assert {len(row) for row in rows} == {1 + len(table.columns)}
    assert len(rows) == 2 + len(table.lines)
    assert all(re.fullmatch(":--|--:", cell) for cell in rows[1])


@pytest.mark.parametrize("name", COUNTS)
def test_each_number_stands_where_its_loss_and_condition_meet(complete, name):
    found = result_tables.entries(ARTEFACTS[name], complete[name], 2)
    (head, _, *rows) = markdown_cells(render.markdown(result_tables.table(ARTEFACTS[name], complete[name], 2)))
    lines = {re.sub(r"\\?[*‡]$", "", row[0]): dict(zip(head, row, strict=True)) for row in rows}
    for entry in found:
        data, noise, measure = entry.place
        by_data = name in ("table:underfit", "table:webvision")
        place = f"{SMOKE.data(data)} for {PLACES[data]}" if by_data else noise.replace(":", " ")
        measure = {"alpha_t": r"α\_t × 10⁴"}.get(measure, measure.replace("_", " "))
        cell = lines[entry.cell.row.name][f"{place} {measure}" if name in ("table:underfit", "table:snr") else place]
        ours = f"{'≤ ' * entry.bound}{render_number(entry.ours.mean)} ± {render_number(entry.ours.std)}"
        parts = cell.split("<br>")
        assert parts[0] == ours
        assert (entry.paper is None) or f"paper {render_number(entry.paper)}" in parts
        assert [part for part in parts if "τ = " in part] == ([] if entry.tau is None else [f"τ = {entry.tau:g}"])


def test_text_fits_a_terminal_and_leaves_nothing_out(table):
    shown = render.table_text(table)
    assert max(map(len, shown.splitlines())) <= 120
    assert table.artefact.title in shown and table.artefact.source in shown
    assert " ".join(shown.split()).endswith(" ".join(table.notes[-1].split()))
    for line in table.lines:
        for cell in line.cells:
            assert all(text in shown for text in cell)


SMALL = TableContent(
    Artefact("table:small", "a title", "table:there"),
    columns=(Column(("clean",)), Column(("symmetric", "0.4")), Column(("symmetric", "0.8")), Column(("l",), code=True)),
    lines=(
        Line("CE‡", (("1.00 ± 0.50", "(2.00, −1.00)"), ("3.00",), ("4.00", "(5.00, −1.00)", "τ = 2"), ("-log(p)",))),
        Line("MAE*", (("not run",), ("7.00",), ("8.00",), ("a|b",))),
    ),
    notes=("100 % & more: a_b.", "* is ours."),
    data=({"row": "CE", "n": 1},),
    runs="scale cpu, n = 3",
)


def test_text_of_a_small_table():
    expected = """\
table:small: a title
The paper's table:there; scale cpu, n = 3

                     symmetric      symmetric
loss          clean        0.4            0.8  l
------------------------------------------------------
CE‡     1.00 ± 0.50       3.00           4.00  -log(p)
      (2.00, −1.00)             (5.00, −1.00)
                                        τ = 2
MAE*        not run       7.00           8.00  a|b

- 100 % & more: a_b.
- * is ours.
"""
    assert render.table_text(SMALL) == expected


def test_a_wide_table_is_split_between_groups():
    wide = replace(SMALL, lines=(Line("CE", (("1",), ("2" * 60,), ("3" * 40,), ("4" * 20,))),))
    heads = [line.split() for line in render.table_text(wide).splitlines() if line.startswith("loss")]
    assert heads == [["loss", "clean", "0.4", "0.8"], ["loss", "l"]]


def test_markdown_and_latex_escape():
    shown = render.markdown(SMALL)
    assert r"| MAE\* | not run | 7.00 | 8.00 | `a\|b` |" in shown
    assert r"- 100 % & more: a\_b." in shown
    tex = render.latex(SMALL)
    assert r"CE\textsuperscript{\textdaggerdbl} & 1.00 $\pm$ 0.50 & 3.00 & 4.00 & \texttt{-log(p)} \\" in tex
    assert r"100 \% \& more: a\_b." in tex
    special = replace(SMALL, lines=(Line(r"50% & $x_1^2$ #{~\}<|>", SMALL.lines[0].cells),))
    label = r"50\% \& \$x\_1\textasciicircum{}2\$ \#\{\textasciitilde{}\textbackslash{}\}$<$$|$$>$ & 1.00"
    assert label in render.latex(special)


def test_latex_is_ascii_balanced_and_rectangular(table):
    tex = render.latex(table)
    assert tex.isascii()
    open_ones = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", tex):
        if kind == "begin":
            open_ones.append(name)
        else:
            assert open_ones.pop() == name
    assert open_ones == []
    plain = re.sub(r"\\.", "", tex)
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    tabulars = re.findall(r"\\begin\{tabular\}\{(l[rl]+)\}(.*?)\\end\{tabular\}", tex, re.DOTALL)
    assert sum(len(columns) - 1 for columns, _ in tabulars) == len(table.columns)
    for columns, body in tabulars:
        for row in re.findall(r"^ +(.*) \\\\$", body, re.MULTILINE):
            assert len(re.findall(r"(?<!\\)&", row)) + 1 == len(columns)
    assert tex.count(r"\label{") == 1


@pytest.mark.skipif(COMPILER is None, reason="no LaTeX here")
def test_latex_compiles(tmp_path, table):
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}"
    (tmp_path / "all.tex").write_text(f"{head}\n{render.latex(table)}\n\\end{{document}}\n")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in str(COMPILER) else []
    done = subprocess.run([str(COMPILER), *options, "all.tex"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]


def test_write_leaves_four_whole_files(tmp_path, table):
    folder = tmp_path / "results" / "here"
    paths = render.write_forms(table, folder)
    assert [path.name for path in paths] == [f"{table.artefact.stem}.{x}" for x in ("txt", "csv", "md", "tex")]
    assert sorted(folder.iterdir()) == sorted(paths)
    texts = [path.read_text(encoding="utf-8") for path in paths]
    assert [texts[0], *texts[2:]] == [render.table_text(table), render.markdown(table), render.latex(table)]


def test_n_is_in_every_form(complete, tmp_path):
    table = result_tables.table(SNR, complete[SNR.name], 2)
    for form in (render.table_text, render.markdown, render.latex):
        assert "scale smoke, n = 2" in form(table)
    assert {row["n"] for row in csv_rows(table, tmp_path)} == {"2"}


# Formulae


def test_every_registered_loss_is_in_one_of_the_tables_of_formulae():
    of = {name: [key.lower() for line in make().lines for key in line.label.split("/")]
          for name, make in formulae.TABLES.items()}  # fmt: skip
    assert sorted(of["table:losses"] + of["table:regularizers"]) == sorted(registry.available())
    assert all(registry.get(name).curriculum is not None for name in of["table:losses"])
    assert all(registry.get(name).curriculum is None for name in of["table:regularizers"])


def test_formulae_are_those_of_the_classes(monkeypatch, tmp_path):
    @dataclass(frozen=True)
    class New(MAE):
        c: float = 2.5

        formula = "new(p)"
        constraints = "c > 2"
        bounded = False

    monkeypatch.setitem(registry._factories, "new", New)
    rows = {row["name"]: row for row in csv_rows(formulae.losses(), tmp_path)}
    assert rows["NEW"] == {
        "name": "NEW", "loss": "new(p)", "weight": "p*(1 - p)", "constraints": "c > 2", "defaults": "c=2.5",
        "bounded": "no", "symmetric": "yes", "noise ratio": "1", "peak": "0.25", "at margin": "0"}  # fmt: skip
    assert (rows["CE"]["at margin"], rows["CE"]["bounded"]) == ("−∞", "no")
    second = {row["name"]: row for row in csv_rows(formulae.regularizers(), tmp_path)}
    assert second["GLS"]["primary"] == "-log(p)" and second["MSE"]["primary"] == "1 - p"
    assert (second["CR"]["bounded below"], second["NCE"]["bounded below"]) == ("no", "yes")
    assert second["NCE"]["regularizer"] == "sum(log(p[i]) for i in range(K))/K"
