"""`curriculoss audit` and `clean`, as a user types them, on data that are not what they should be, too."""

from __future__ import annotations

import csv
import errno
import json
import os
import shlex

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

from curriculoss import cli
from curriculoss.auditing import estimate_noise
from curriculoss.data import DataError, load
from curriculoss.runs import Run

HOSTILE = '<img src=x onerror="alert(1)">'
NAMES = ("cat", HOSTILE.replace("/", ""), "=dog")


def run(*arguments, expect=0):
    done = CliRunner().invoke(cli.app, [str(x) for x in arguments], prog_name="curriculoss")
    assert done.exit_code == expect, (done.output, done.exception)
    return done


def refused(*arguments):
    done = run(*arguments, expect=2)
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    return done.stderr


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def decided(path, *lines):
    path.write_text("\n".join(["index,path,decision,label", *lines, ""]))
    return path


@pytest.fixture
def pets(tmp_path):
    """Class folders with names that would like to be something else, and two images that cannot be read."""
    chance = np.random.default_rng(0)
    for number, name in enumerate(NAMES):
        folder = tmp_path / "pets" / name
        folder.mkdir(parents=True)
        for i in range(8):
            pixels = chance.integers(0, 60, (12, 12, 3), dtype=np.uint8)
            pixels[..., number] += 150
            Image.fromarray(pixels).save(folder / f"{i}.png")
    (tmp_path / "pets/cat/3.png").write_bytes(b"not a picture")
    whole = (tmp_path / "pets/=dog/5.png").read_bytes()
    (tmp_path / "pets/=dog/5.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path / "pets"


@pytest.fixture
def table(tmp_path):
    chance = np.random.default_rng(0)
    lines = [f"{chance.normal() + 5 * (i % 2):.3f},{('no', 'yes')[i % 2]},{i:03d}\n" for i in range(30)]
    (tmp_path / "own.csv").write_text("".join(["height,label,width\n", *lines]))
    return tmp_path / "own.csv"


def test_files_of_an_audit_agree_with_what_json_says(tmp_path):
    result = json.loads(run("audit", "digits", "--noise", "symmetric:0.3", "--subset", "400", "--epochs", "8",
                            "--out", tmp_path / "a", "--json").stdout)  # fmt: skip
    listed = rows(result["files"]["suspects"])
    assert list(listed[0]) == ["index", "path", "given", "suggested", "score", "p_wrong"]
    assert len(listed) == result["suspects"] >= result["noise_rate"] * 400
    scores = [float(row["score"]) for row in listed]
    assert scores == sorted(scores, reverse=True)
    assert result == json.loads((tmp_path / "a/noise.json").read_text()) and len(result["confusion"]) == 10
    low, high = result["interval"]
    assert low <= result["noise_rate"] <= high and result["against_truth"]["noise_rate"] == 0.3
    labels = Run(tmp_path / "a/run").arrays("labels")  # of 400 samples, by their place among all
    places = dict(zip(labels["index"].tolist(), labels["given"].tolist(), strict=True))
    assert all(str(places[int(row["index"])]) == row["given"] for row in listed)
    assert (tmp_path / "a/audit.html").read_text().count("data:image/png;base64") == min(500, len(listed))


def test_audit_is_told_to_people_too_and_is_not_run_again(tmp_path):
    command = ("audit", "digits", "--noise", "symmetric:0.3", "--subset", "200", "--epochs", "2", "--out", tmp_path)
    first = run(*command).stdout
    (tmp_path / ".suspects.csv.123.part").write_text("left by a process that was killed")
    before = (tmp_path / "run/result.json").stat().st_mtime_ns
    assert run(*command).stdout == first and (tmp_path / "run/result.json").stat().st_mtime_ns == before
    assert "of the 200 labels seem to be wrong" in first and "in truth 30 % are wrong" in first
    assert f"look at them: {tmp_path / 'audit.html'}" in first and "curriculoss clean" not in first  # it has no path
    assert not list(tmp_path.rglob(".*.part"))


def test_a_single_wrong_label_is_told_in_the_singular(tmp_path):
    (tmp_path / "own.csv").write_text("a,b,c,label\n3,0,0,ant\n0,3,0,bee\n0,0,3,cat\n")
    said = run("audit", tmp_path / "own.csv", "--out", tmp_path / "a").stdout
    assert "the 3 most suspicious labels are listed; about 1 of them is wrong" in said


def test_an_audit_is_not_mixed_with_a_run(table, tmp_path):
    run("train", "--data", table, "--label", "label", "--epochs", 1, "--network", "linear", "--out", tmp_path / "run")
    before = sorted((tmp_path / "run").iterdir())
    said = refused("audit", table, "--label", "label", "--epochs", 1, "--out", tmp_path / "run")
    assert "holds a run; give another folder for the audit" in said and sorted((tmp_path / "run").iterdir()) == before


def test_images_that_cannot_be_read_are_listed_skipped_and_counted(pets, tmp_path):
    result = json.loads(run("audit", pets, "--epochs", "2", "--out", tmp_path / "a", "--json").stdout)
    assert result["unreadable"] == 2 and result["samples"] == 22
    bad = rows(result["files"]["unreadable"])
    assert [row["index"] for row in bad] == ["13", "19"]  # sorted: <img …, =dog, cat
    assert "=dog/5.png" in bad[0]["reason"] and "cat/3.png" in bad[1]["reason"]
    for row in rows(result["files"]["suspects"]):
        everything = sorted(str(x) for x in pets.rglob("*.png"))
        assert everything[int(row["index"])] == row["path"]


def test_names_in_a_page_and_a_table_are_text(pets, tmp_path):
    result = json.loads(run("audit", pets, "--epochs", "1", "--out", tmp_path / "a", "--json").stdout)
    page = (tmp_path / "a/audit.html").read_text()
    assert "<img" not in page and "\\u003cimg src=x" in page
    for row in rows(result["files"]["suspects"]):
        assert not row["given"].startswith("=") and not row["suggested"].startswith("=")


def test_clean_makes_a_new_tree_and_leaves_the_old_one_alone(pets, tmp_path):
    before = {path: path.read_bytes() for path in pets.rglob("*.png")}
    listed = sorted(map(str, pets.rglob("*.png")))
    at = {path.removeprefix(f"{pets}/"): i for i, path in enumerate(listed)}
    decisions = decided(
        tmp_path / "d.csv", f"{at['cat/0.png']},{pets}/cat/0.png,fix,'=dog", f"{at['cat/1.png']},,drop,",
        f"{at['=dog/2.png']},,keep,=dog",
    )  # fmt: skip
    done = run("clean", pets, "--decisions", decisions, "--out", tmp_path / "new")
    assert "1 fixed, 1 dropped, 1 kept as they are: 21 of 24 samples" in done.stdout
    assert f"curriculoss train --data {tmp_path / 'new'} --loss auto" in done.stdout
    assert {path: path.read_bytes() for path in pets.rglob("*.png")} == before
    new = sorted(str(path.relative_to(tmp_path / "new")) for path in (tmp_path / "new").rglob("*.png"))
    old = sorted(name for name in at if name not in ("cat/0.png", "cat/1.png", "cat/3.png", "=dog/5.png"))
    assert new == sorted([*old, "=dog/0-2.png"])  # =dog/0.png was there already
    assert (tmp_path / "new/=dog/0-2.png").read_bytes() == before[pets / "cat/0.png"]
    assert len(load(tmp_path / "new").train) == 21  # retraining reads it
    (fix, drop, keep) = rows(tmp_path / "new/changes.csv")
    assert fix["written"].endswith("0-2.png") and (drop["written"], keep["decision"]) == ("", "keep")


def test_clean_keeps_test_images_beside_train(pets, tmp_path):
    root = tmp_path / "root"
    (root / "test").mkdir(parents=True)
    os.rename(pets, root / "train")
    os.mkdir(root / "test/cat")
    Image.new("RGB", (12, 12)).save(root / "test/cat/x.png")
    report = json.loads(run("clean", root, "--decisions", decided(tmp_path / "d.csv", "0,,drop,"), "--out",
                            tmp_path / "new", "--link", "--json").stdout)  # fmt: skip
    found = load(report["data"])
    assert len(found.train) == 21 and len(found.test) == 1
    assert (tmp_path / "new/train/cat/0.png").samefile(root / "train/cat/0.png")


def test_clean_changes_labels_of_a_csv_and_nothing_else_in_it(table, tmp_path):
    decisions = decided(tmp_path / "d.csv", "0,,fix,yes", "3,,drop,")
    report = json.loads(run("clean", table, "--decisions", decisions, "--out", tmp_path / "new", "--json").stdout)
    before, after = table.read_text().splitlines(), (tmp_path / "new/own.csv").read_text().splitlines()
    assert after[1] == before[1].replace(",no,", ",yes,") and after[2:] == [*before[2:4], *before[5:]]
    assert report["samples"] == len(load(tmp_path / "new/own.csv").train) == 29


@pytest.mark.parametrize("vectors", [False, True])
def test_parquet_of_numbers_or_of_embeddings_is_audited_and_cleaned(tmp_path, vectors):
    x = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    columns = {"embedding": list(x)} if vectors else {f"f{i}": x[:, i] for i in range(3)}
    path = tmp_path / "own.parquet"
    parquet.write_table(pyarrow.table({**columns, "kind": ["a", "b"] * 10}), path)
    np.testing.assert_array_equal(load(path, label="kind").train.inputs.numpy(), x)
    run("audit", path, "--label", "kind", "--epochs", "1", "--out", tmp_path / "a", "--json")
    run("clean", path, "--label", "kind", "--decisions", decided(tmp_path / "d.csv", "1,,fix,a", "2,,drop,"),
        "--out", tmp_path / "new")  # fmt: skip
    found = parquet.read_table(tmp_path / "new/own.parquet")
    assert found["kind"].to_pylist() == ["a", "a", *["b", "a"] * 8, "b"]
    assert found.schema.names == [*columns, "kind"]


@pytest.mark.parametrize("lists", [[[1.0], [1.0, 2.0]], [[1.0], [None]], [[], []]])
def test_embeddings_of_different_lengths_are_refused(tmp_path, lists):
    kind = pyarrow.list_(pyarrow.float32())
    parquet.write_table(pyarrow.table({"e": pyarrow.array(lists, kind), "y": ["a", "b"]}), tmp_path / "own.parquet")
    with pytest.raises(DataError, match="expected lists of one length, without missing numbers, in column 'e'"):
        load(tmp_path / "own.parquet")


def test_embeddings_with_labels_beside_them(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((40, 130)))
    (tmp_path / "y.txt").write_text("left\nright\n" * 20)
    given = (tmp_path / "x.npy", "--labels", tmp_path / "y.txt")
    run("audit", *given, "--epochs", "2", "--out", tmp_path / "a", "--json")
    assert Run(tmp_path / "a/run").result.network == "linear"
    run("clean", *given, "--decisions", decided(tmp_path / "d.csv", "1,,fix,left", "2,,drop,"), "--out", tmp_path / "b")
    found = load(tmp_path / "b/x.npz")
    assert len(found.train) == 39 and found.train.target.tolist()[:3] == [0, 0, 1]
    assert "expected its labels beside it, as --labels FILE" in refused("audit", tmp_path / "x.npy", "--out", tmp_path)


def test_tables_are_shown_as_rows_with_their_columns(table, tmp_path):
    run("audit", table, "--epochs", "1", "--out", tmp_path / "a", "--json")
    page = (tmp_path / "a/audit.html").read_text()
    content = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert content["features"] == ["height", "width"] and len(content["items"]) == 30
    item = next(item for item in content["items"] if item["index"] == 7)
    assert item["row"] == [float(table.read_text().splitlines()[8].split(",")[0]), 7.0] and not item["image"]


def test_rows_that_name_one_image_twice_are_two_samples(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("L", (8, 8), 30).save(tmp_path / name)
    path = tmp_path / "own.csv"
    path.write_text("file,label\na.png,x\na.png,y\nb.png,y\nb.png,x\na.png,x\n")
    result = json.loads(run("audit", path, "--epochs", "1", "--out", tmp_path / "a", "--json").stdout)
    assert result["samples"] == 5
    run("clean", path, "--decisions", decided(tmp_path / "d.csv", "1,,fix,x"), "--out", tmp_path / "new")
    assert load(tmp_path / "new/own.csv").train.target.tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["0,,keep,", "0,,drop,"], "line 3: sample 0 has contradictory decisions"),
        (["30,,drop,"], "line 2: sample '30' is not in the data"),
        (["-1,,drop,"], "line 2: sample '-1' is not in the data"),
        (["x,,drop,"], "line 2: sample 'x' is not in the data"),
        (["0,,shrug,"], "line 2: expected keep, fix or drop, got 'shrug'"),
        (["0,,fix,"], "line 2: fix expects a label that is one of the classes, got ''"),
        (["0,,fix,maybe"], "line 2: fix expects a label that is one of the classes, got 'maybe'"),
        (["0,,fix,no"], "line 2: fix contradicts the label 'no', which sample 0 is given already"),
        (["0,,keep,yes"], "line 2: keep contradicts the label 'yes': sample 0 is given 'no'"),
        ([f"{i},,drop," for i in range(0, 30, 2)], "fewer than two classes would be left"),
    ],
)
def test_decisions_that_cannot_be_meant_are_refused(table, tmp_path, lines, said):
    decisions = decided(tmp_path / "d.csv", *lines)
    assert said in refused("clean", table, "--decisions", decisions, "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_folders_and_files_that_clean_cannot_use_are_refused(pets, table, tmp_path):
    nothing = decided(tmp_path / "d.csv")
    assert "is not an empty folder" in refused("clean", table, "--decisions", nothing, "--out", tmp_path)
    assert "is inside" in refused("clean", pets, "--decisions", nothing, "--out", pets / "new")
    assert "known by name" in refused("clean", "digits", "--decisions", nothing, "--out", tmp_path / "new")
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    assert "expected the columns index,path,decision,label" in refused(
        "clean", table, "--decisions", tmp_path / "bad.csv", "--out", tmp_path / "new"
    )
    other = decided(tmp_path / "other.csv", f"0,{pets}/cat/0.png,drop,")
    assert "are these decisions on other data?" in refused(
        "clean", pets, "--decisions", other, "--out", tmp_path / "new"
    )
    unread = decided(tmp_path / "unread.csv", "13,,drop,")
    assert "sample '13' could not be read" in refused("clean", pets, "--decisions", unread, "--out", tmp_path / "new")


def test_a_folder_that_clean_has_written_is_data_and_can_be_cleaned_again(table, tmp_path):
    run("clean", table, "--decisions", decided(tmp_path / "d.csv", "0,,fix,yes"), "--out", tmp_path / "new")
    assert (tmp_path / "new/changes.csv").exists()
    once = load(tmp_path / "new")
    assert once.train.target.tolist() == load(tmp_path / "new/own.csv").train.target.tolist()
    run("clean", tmp_path / "new", "--decisions", decided(tmp_path / "e.csv", "1,,drop,"), "--out", tmp_path / "newer")
    assert len(load(tmp_path / "newer").train) == len(once.train) - 1


def test_a_numbered_class_must_not_be_left_empty(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=[0, 1, 2, 2])
    said = refused("clean", tmp_path / "own.npz", "--decisions", decided(tmp_path / "d.csv", "1,,fix,2"), "--out",
                   tmp_path / "new")  # fmt: skip
    assert "class 1 would be left without samples" in said


def test_a_class_with_a_name_in_the_file_must_not_be_left_empty(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.eye(4), y=["a", "b", "c", "c"], class_names=["c", "b", "a"])
    said = refused("clean", tmp_path / "own.npz", "--decisions", decided(tmp_path / "d.csv", "1,,fix,c"), "--out",
                   tmp_path / "new")  # fmt: skip
    assert "class b would be left without samples" in said


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_cleaned_labels_are_written_as_the_file_has_them(kind, tmp_path):
    path, labels = tmp_path / f"own.{kind}", [10, 20, 30] * 2
    if kind == "npz":
        np.savez(path, x=np.eye(6), y=labels)
    else:
        table = pyarrow.table({"x": np.arange(6.0), "label": pyarrow.array(labels, pyarrow.int16())})
        parquet.write_table(table, path)
    run("clean", path, "--decisions", decided(tmp_path / "d.csv", "0,,fix,30", "4,,drop,"), "--out", tmp_path / "new")
    if kind == "npz":
        with np.load(tmp_path / "new/own.npz") as archive:
            assert archive["y"].tolist() == [30, 20, 30, 10, 30]
    else:
        column = parquet.read_table(tmp_path / "new/own.parquet")["label"]
        assert column.to_pylist() == [30, 20, 30, 10, 30] and column.type == pyarrow.int16()


def test_a_misspelt_class_may_be_left_empty(tmp_path):
    (tmp_path / "own.csv").write_text("x,label\n1,cat\n2,dog\n3,catt\n")
    done = run("clean", tmp_path / "own.csv", "--decisions", decided(tmp_path / "d.csv", "2,,fix,cat"), "--out",
               tmp_path / "new")  # fmt: skip
    assert "classes without samples now: 'catt'" in done.stdout
    assert load(tmp_path / "new/own.csv").class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x,label\n1,cat\n2,\n3,dog\n", "expected a label for every sample, got none in row 1"),
        ("x,label\n1,0\n2,\n3,1\n", "expected a value in every row, got none in row 1"),
        ("x,label\n1,cat\n2,cat\n", "expected at least two classes"),
        ("x,label\n1,cat\nnan,dog\n", "expected a value in every row, got none in row 1, column 'x'"),
    ],
)
def test_tables_that_cannot_be_audited_are_one_clear_line(tmp_path, text, said):
    (tmp_path / "own.csv").write_text(text)
    assert said in refused("audit", tmp_path / "own.csv", "--out", tmp_path / "a")


def test_a_class_without_readable_images_is_one_clear_line(pets, tmp_path):
    for file in (pets / "cat").iterdir():
        file.write_bytes(b"")
    assert "class 'cat' has no readable images" in refused("audit", pets, "--out", tmp_path / "a")


def test_training_that_would_have_nothing_to_test_on_is_refused(table, tmp_path):
    said = refused("train", "--data", table, "--holdout", "0", "--epochs", "1", "--out", tmp_path / "run")
    assert "holdout expects 0 < holdout < 1 where the data have no test samples" in said


def test_photos_of_any_size_are_audited_and_shown_as_small_pictures(tmp_path):
    chance = np.random.default_rng(0)
    for i in range(8):
        folder = tmp_path / "photos" / ("sea", "sky")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 255, (90 + i, 120, 3), dtype=np.uint8)).save(folder / f"{i}.jpg")
    command = ("audit", tmp_path / "photos", "--width", "0.1", "--epochs", "1", "--json")
    result = json.loads(run(*command, "--out", tmp_path / "a").stdout)
    assert result["samples"] == 8 and (tmp_path / "a/audit.html").read_text().count("data:image/jpeg;base64") == 8
    assert "is inside" in refused(*command, "--out", tmp_path / "photos/audit")
    small = json.loads(run(*command, "--image-size", 16, "--out", tmp_path / "b").stdout)
    assert small["samples"] == 8 and json.loads((tmp_path / "b/run/spec.json").read_text())["image_size"] == 16


def test_clean_writes_a_class_as_the_table_has_it(tmp_path):
    (tmp_path / "own.csv").write_text("x,label\n1,true\n2,false\n3,true\n4,false\n")
    decisions = decided(tmp_path / "d.csv", "0,,fix,0")
    run("clean", tmp_path / "own.csv", "--decisions", decisions, "--out", tmp_path / "new")
    assert (tmp_path / "new/own.csv").read_text() == "x,label\n1,false\n2,false\n3,true\n4,false\n"


def test_decisions_hold_when_the_data_have_moved(pets, tmp_path):
    decisions = decided(tmp_path / "d.csv", "16,elsewhere/pets/cat/0.png,drop,")
    os.rename(pets, tmp_path / "moved")
    run("clean", tmp_path / "moved", "--decisions", decisions, "--out", tmp_path / "new")
    assert not (tmp_path / "new/cat/0.png").exists() and (tmp_path / "new/cat/1.png").exists()


@pytest.mark.parametrize("command", [("train", "--loss", "auto"), ("compare", "ce"), ("tune", "--trials", "1")])
def test_nothing_is_written_into_the_data(command, pets, tmp_path):
    before = sorted(pets.rglob("*"))
    (tmp_path / "spec.toml").write_text(f"data = '{pets}'\n")
    for given in (("--data", pets), ("--spec", tmp_path / "spec.toml")):
        assert "is inside" in refused(*command, *given, "--out", pets / "run")
    assert sorted(pets.rglob("*")) == before


def test_the_command_that_comes_next_works_as_printed(tmp_path):
    chance = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", chance.standard_normal((40, 3)))
    (tmp_path / "y.txt").write_text("\ufeff" + "\n".join(["a", "b"] * 20) + "\n\n", "utf-8")
    given = ("audit", tmp_path / "x.npy", "--labels", tmp_path / "y.txt", "--epochs", "1", "--out", tmp_path / "out")
    said = run(*given).stdout
    assert (
        estimate_noise(tmp_path / "out").noise_rate
        == json.loads((tmp_path / "out/noise.json").read_text())["noise_rate"]
    )
    decided(tmp_path / "decisions.csv", "0,,keep,a")
    (line,) = (line for line in said.splitlines() if line.startswith("then: "))
    words = shlex.split(line)[2:]
    words[words.index("decisions.csv")], words[words.index("cleaned")] = tmp_path / "decisions.csv", tmp_path / "new"
    assert "1 kept as they are: 40 of 40 samples" in run(*words).stdout


def test_auto_is_among_the_losses_that_are_named(tmp_path):
    assert "did you mean 'auto'?" in refused("train", "--data", "digits", "--loss", "atuo", "--out", tmp_path / "run")


@pytest.mark.parametrize("numbers", [range(12), range(1, 13)])  # as classes are numbered, and names that are numbers
def test_cleaned_arrays_keep_numbered_classes(numbers, tmp_path):
    labels = np.array(list(numbers) * 4)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((48, 3)))
    np.save(tmp_path / "y.npy", labels)
    decided(tmp_path / "decisions.csv", f"0,,fix,{labels[11]}")
    given = ("clean", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--decisions", tmp_path / "decisions.csv")
    run(*given, "--out", tmp_path / "new")
    with np.load(tmp_path / "new/x.npz") as archive:
        assert archive["y"].tolist() == [
            number if numbers[0] == 0 else str(number) for number in [labels[11], *labels[1:]]
        ]
    assert len(load(str(tmp_path / "new/x.npz")).class_names) == 12


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_a_cleaned_copy_that_does_not_fit_on_the_disk_is_named_and_not_left_half_written(tmp_path, monkeypatch, suffix):
    data, decisions, out = tmp_path / f"data.{suffix}", tmp_path / "decisions.csv", tmp_path / "out"
    columns = {"height": [1.0, 2.0, 3.0, 4.0], "label": [0, 0, 1, 1]}
    if suffix == "npz":
        np.savez(data, x=np.array(columns["height"])[:, None], y=columns["label"])
    elif suffix == "csv":
        data.write_text("height,label\n1,0\n2,0\n3,1\n4,1\n")
    else:
        parquet.write_table(pyarrow.table(columns), data)
    decisions.write_text("index,decision\n1,drop\n")

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused = run("clean", data, "--decisions", decisions, "--out", out, expect=1).stderr
    assert refused.startswith(f"Error: cannot read or write {out / data.name}: No space left") and not list(
        out.iterdir()
    )
