"""What a run has trained, as one module from raw inputs to probabilities: loaded, used by `predict`, exported."""

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from curriculoss import cli, data
from curriculoss.runs import RunError, RunSpec, export_model, load_model, train
from curriculoss.runs.task import make_task


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    result = train(RunSpec(data="digits", network="cnn4", width=0.25, epochs=2), folder)
    return folder, result


@pytest.fixture
def run(trained, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(trained[0], tmp_path / "run")


def change(path, **facts):
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def test_the_model_takes_raw_inputs_and_scores_what_training_measured(trained):
    folder, result = trained
    model, digits = load_model(folder), data.load("digits")
    probabilities = model(digits.test.inputs)
    assert not model.training and not probabilities.requires_grad
    assert model.class_names == digits.class_names and model.input_shape == (1, 8, 8)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(digits.test)))
    accuracy = 100 * (probabilities.argmax(1) == digits.test.target).double().mean()
    assert float(accuracy) == pytest.approx(result.test_accuracy)


@pytest.mark.parametrize("shape", [(5,), (2, 6, 5)])
def test_inputs_are_normalised_as_in_training(tmp_path, shape):
    chance = np.random.RandomState(0)
    np.savez(tmp_path / "own.npz", x=100 + 7 * chance.randn(40, *shape), y=np.arange(40) % 2)
    spec = RunSpec(data=str(tmp_path / "own.npz"), network="linear", epochs=1, holdout=0.5)
    train(spec, tmp_path / "run")
    model, task = load_model(tmp_path / "run"), make_task(spec)
    for inputs, _, index in task.batches(spec, torch.device("cpu"), test=True).epoch(0):
        assert torch.equal(model(task.test.inputs[index]), model.network(inputs).softmax(1))


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        (torch.zeros(3, 1, 8, 8), "expects uint8 inputs, as in training, got torch.float32"),
        (torch.zeros(3, 1, 8, 9, dtype=torch.uint8), r"inputs of shape \(N, 1, 8, 8\), got \(3, 1, 8, 9\)"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), r"inputs of shape \(N, 1, 8, 8\), got \(1, 8, 8\)"),
    ],
)
def test_other_inputs_are_refused(trained, inputs, match):
    with pytest.raises((TypeError, ValueError), match=match):
        load_model(trained[0])(inputs)


def test_a_folder_without_a_finished_run_is_one_line(run, tmp_path):
    with pytest.raises(RunError, match=r"nowhere holds no run: expected spec\.json in it"):
        load_model(tmp_path / "nowhere")
    (run / "result.json").unlink()
    with pytest.raises(RunError, match="run is not finished: give the command that began it again, and it goes on"):
        load_model(run)
    (run / "failed.json").write_text('{"epoch": 1, "reason": "training diverged in epoch 1"}')
    with pytest.raises(RunError, match="has no trained network: training diverged in epoch 1"):
        load_model(run)


def test_a_run_without_facts_about_its_inputs_is_one_line(run):
    old = {"fingerprint": "0", "num_classes": 2, "class_names": ["0", "1"], "train": 8, "test": 2}
    (run / "task.json").write_text(json.dumps(old))
    with pytest.raises(RunError, match="of an older version and does not say what its network expects; train it again"):
        load_model(run)


@pytest.mark.parametrize(
    ("file", "facts"),
    [
        ("result.json", {"network": "linear"}),
        ("task.json", {"input_format": {"mean": "no"}}),
        ("task.json", {"train": "all"}),
    ],
)
def test_facts_that_do_not_fit_are_one_line(run, file, facts):
    change(run / file, **facts)
    with pytest.raises(RunError, match=r"^cannot (load the network of \S+run|read \S+task.json): [^\n]+$"):
        load_model(run)


def test_broken_weights_are_one_line(run):
    (run / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(RunError, match=r"^cannot load the network of \S+run: Error while deserializing header[^\n]+$"):
        load_model(run)


def test_a_network_of_ones_own_has_to_be_given(run):
    change(run / "result.json", network="Mine")
    with pytest.raises(RunError, match="trained with a network of your own, Mine: give it as network= or --network"):
        load_model(run)


def test_a_network_is_given_as_itself_or_as_what_makes_it(trained):
    from curriculoss.models import make_network

    folder, _ = trained
    expected = load_model(folder)(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))

    def factory(shape, num_classes):
        return make_network("cnn4", shape, num_classes, width=0.25)

    own = factory((1, 8, 8), 10)
    before = {name: value.clone() for name, value in own.state_dict().items()}
    for network in (factory, own):
        assert torch.equal(load_model(folder, network)(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)), expected)
    assert own.training and all(torch.equal(value, before[name]) for name, value in own.state_dict().items())
    with pytest.raises(RunError, match=r"state_dict for Flatten: Unexpected key\(s\) in state_dict: \"[^\n]+$"):
        load_model(folder, nn.Flatten())


def command(*arguments, expect=0):
    done = CliRunner().invoke(cli.app, [str(x) for x in arguments], prog_name="curriculoss")
    assert done.exit_code == expect, (done.output, done.exception)
    return done


def test_predict_writes_what_the_model_says(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, result = trained
    command("predict", folder, "digits", "--top", 99)
    found = np.genfromtxt("predictions.csv", delimiter=",", names=True)
    digits = data.load("digits").test
    assert (found["index"] == np.arange(len(digits))).all() and len(found.dtype.names) == 1 + 2 * 10
    assert 100 * (found["prediction"] == digits.target.numpy()).mean() == pytest.approx(result.test_accuracy)
    expected = load_model(folder)(digits.inputs).sort(1, descending=True).values
    torch.testing.assert_close(torch.tensor(found["probability_2"]), expected[:, 1].double(), rtol=0, atol=1e-6)


def test_predict_as_json_writes_no_file_unless_asked_to(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = json.loads(command("predict", trained[0], "digits", "--json", "--top", 1).stdout)
    assert list(answer["predictions"][0]) == ["index", "prediction", "probability"] and answer["out"] is None
    assert not list(tmp_path.iterdir())
    command("predict", trained[0], "digits", "--json", "--out", "mine.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


@pytest.mark.parametrize(
    ("command_name", "out", "match"),
    [
        ("predict", "missing/table.csv", "cannot write missing/table.csv: there is no folder 'missing'"),
        ("predict", ".", "cannot write .: it is a folder"),
        ("export", "missing/model.pt2", "cannot write missing/model.pt2: there is no folder 'missing'"),
        ("report", "missing/page.html", "cannot write missing/page.html: there is no folder 'missing'"),
    ],
)
def test_an_out_that_cannot_be_written_is_refused_before_any_work(
    trained, command_name, out, match, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.nn.Module, "__call__", None)  # the network is not asked
    given = {"predict": ("digits", "--out", out), "export": (out,), "report": ("--out", out)}[command_name]
    assert match in command(command_name, trained[0], *given, expect=2).stderr


def test_a_network_of_ones_own_is_named_again(run, tmp_path, monkeypatch):
    change(run / "result.json", network="Mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_networks.py").write_text(
        "from curriculoss.models import make_network\n\n\n"
        "def narrow(shape, num_classes):\n    return make_network('cnn4', shape, num_classes, width=0.25)\n"
    )
    command("predict", run, "digits", "--network", "my_networks:narrow")
    command("export", run, tmp_path / "model.pt2", "--network", "my_networks:narrow")
    for given, match in (
        ((), "trained with a network of your own, Mine: give it as network= or --network"),
        (("--network", "my_networks"), "--network expects package.module:factory, got 'my_networks'"),
        (("--network", "nowhere_at_all:x"), "cannot be imported: No module named 'nowhere_at_all'"),
        (("--network", "my_networks:wide"), "module 'my_networks' has no attribute 'wide'"),
        (("--network", "my_networks:__name__"), "expected a function or class, got str"),
    ):
        assert match in command("predict", run, "digits", *given, expect=2).stderr.replace("\n", " ")


def test_runs_that_cannot_be_used_exit_with_one_line(run, tmp_path):
    (run / "result.json").unlink()
    for folder, match in ((run, "is not finished"), (tmp_path, "holds no run"), (tmp_path / "nowhere", "holds no run")):
        for rest in (("predict", folder, "digits"), ("export", folder, tmp_path / "model.pt2")):
            error = command(*rest, expect=2).stderr
            assert match in error and error.count("\n") == 1


def test_an_exported_model_is_the_model_at_every_batch_size(trained, tmp_path):
    path = tmp_path / "model.pt2"
    answer = json.loads(command("export", trained[0], path, "--json").stdout)
    assert answer["inputs"] == {"shape": ["N", 1, 8, 8], "dtype": "uint8"} and len(answer["class_names"]) == 10
    exported, model = torch.export.load(path).module(), load_model(trained[0])
    for size in (1, 2, 3, 500):
        inputs = torch.randint(256, (size, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
        torch.testing.assert_close(exported(inputs), model(inputs))
    assert "ends with .pt2" in command("export", trained[0], tmp_path / "model.onnx", expect=2).stderr


def test_a_network_that_torch_export_cannot_follow_is_one_line(trained, tmp_path, monkeypatch, capfd):
    class Branching(nn.Module):
        def forward(self, inputs):
            return inputs.flatten(1)[:, :10] if inputs.sum() > 0 else inputs.flatten(1)[:, 10:20]

    model = load_model(trained[0])
    model.network = Branching()
    with pytest.raises(RunError, match=r"^torch\.export cannot follow Branching: [^\n]+$"):
        export_model(model, tmp_path / "model.pt2")
    assert "def forward" not in capfd.readouterr().err  # torch alone would print a screenful
    assert not list(tmp_path.iterdir())
