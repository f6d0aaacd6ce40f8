"""A newcomer's way, as commands: train on photos of one's own, predict new ones, export the network and use it."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from curriculoss import cli
from curriculoss.data import load_inputs
from curriculoss.runs import load_model

pytestmark = pytest.mark.slow

CLASSES = {"day": 190, "night": 50}


def run(*arguments):
    done = CliRunner().invoke(cli.app, [str(x) for x in arguments], prog_name="curriculoss")
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout.replace("\n", " ")


def photo(path, brightness, chance):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = chance.randint(brightness - 40, brightness + 40, (chance.randint(60, 90), chance.randint(60, 90), 3))
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def test_from_photos_to_predictions_to_a_program_that_gives_the_same(tmp_path):
    chance = np.random.RandomState(0)
    for name, brightness in CLASSES.items():
        for number in range(24):
            photo(tmp_path / f"photos/{name}/{number}.png", brightness, chance)
        for number in range(3):
            photo(tmp_path / f"new/{name}-{number}.jpg", brightness, chance)
    folder, table, program = tmp_path / "run", tmp_path / "predictions.csv", tmp_path / "model.pt2"

    said = run("train", "--data", tmp_path / "photos", "--image-size", 24, "--network", "cnn4", "--width", 0.25,
               "--epochs", 4, "--batch-size", 8, "--loss", "mae", "--fix", "scale", "--out", folder)  # fmt: skip
    assert f"curriculoss predict {folder} DATA" in said and f"curriculoss export {folder} model.pt2" in said

    assert str(table) in run("predict", folder, tmp_path / "new", "--out", table, "--top", 2)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0]) == ["path", "prediction", "probability", "prediction_2", "probability_2"]
    expected = {str(path): path.name.partition("-")[0] for path in (tmp_path / "new").iterdir()}
    assert {row["path"]: row["prediction"] for row in rows} == expected

    assert "torch.export.load" in run("export", folder, program)
    extra = {"class_names.json": ""}
    exported = torch.export.load(program, extra_files=extra).module()
    names = json.loads(extra["class_names.json"])
    inputs = load_inputs(tmp_path / "new", load_model(folder).input_format)
    for size in (1, 4, 6):
        probabilities = torch.cat([exported(batch) for batch in inputs.batches(size)])
        assert [names[label] for label in probabilities.argmax(1)] == [row["prediction"] for row in rows]
        found = torch.tensor([[float(row["probability"]), float(row["probability_2"])] for row in rows])
        torch.testing.assert_close(probabilities.sort(1, descending=True).values, found, rtol=0, atol=1e-5)
