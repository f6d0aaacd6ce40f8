"""RobustClassifier, by scikit-learn's own battery and by what it is for."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from curriculoss import GCE, MAE, Scaled, fix
from curriculoss.errors import CurriculossError
from curriculoss.integrations.sklearn import RobustClassifier

pytestmark = pytest.mark.slow


@parametrize_with_checks([RobustClassifier(epochs=25)])
def test_it_is_an_estimator_like_any_other(estimator: RobustClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


def scaled(*steps: Any) -> Any:
    return make_pipeline(StandardScaler(), *steps)


def small(**settings: Any) -> RobustClassifier:
    return RobustClassifier(**({"epochs": 5, "random_state": 0} | settings))


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    features, target = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(features), target


@pytest.mark.parametrize(
    ("load", "least"),
    [(load_iris, 0.9), (load_breast_cancer, 0.94), (load_digits, 0.96)],
    ids=["iris", "cancer", "digits"],
)
def test_defaults_learn_clean_labels(load: Callable[..., Any], least: float) -> None:
    features, target = load(return_X_y=True)
    train, test, given, true = train_test_split(features, target, test_size=0.3, random_state=0, stratify=target)
    assert scaled(RobustClassifier(random_state=0)).fit(train, given).score(test, true) >= least


@pytest.fixture(scope="module")
def noisy_digits() -> dict[str, Any]:
    features, target = load_digits(return_X_y=True)
    train, test, clean, true = train_test_split(features, target, test_size=0.3, random_state=0, stratify=target)
    rng = np.random.default_rng(0)
    wrong = rng.random(len(clean)) < 0.4
    given = np.where(wrong, (clean + rng.integers(1, 10, len(clean))) % 10, clean)
    model = scaled(RobustClassifier(random_state=0)).fit(train, given)
    return {"model": model, "train": (train, given), "test": (test, true), "wrong": wrong}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # it goes on to memorise
@pytest.mark.parametrize(
    ("other", "points"),
    [
        (LogisticRegression(max_iter=500), 4),
        (MLPClassifier(random_state=0), 10),
        (RobustClassifier("ce", random_state=0), 15),
    ],
    ids=["logistic", "mlp", "ce"],
)
def test_defaults_are_ahead_with_noisy_labels(noisy_digits: dict[str, Any], other: Any, points: float) -> None:
    robust = noisy_digits["model"].score(*noisy_digits["test"])
    assert robust >= 0.9
    assert robust >= scaled(other).fit(*noisy_digits["train"]).score(*noisy_digits["test"]) + points / 100


def test_low_margins_are_wrong_labels(noisy_digits: dict[str, Any]) -> None:
    margins = noisy_digits["model"][-1].margins_
    assert roc_auc_score(noisy_digits["wrong"], -margins) > 0.95


def test_a_loss_has_a_name_or_is_given_and_may_be_fixed(iris: tuple[np.ndarray, np.ndarray]) -> None:
    features, target = load_digits(return_X_y=True)
    assert small(loss="gce", epochs=1).fit(*iris).loss_ == GCE()
    assert small(loss=GCE(0.3), epochs=1).fit(*iris).loss_ == GCE(0.3)
    found = small(loss="mae", fix="scale", tau=2.0, epochs=1).fit(features, target).loss_
    assert isinstance(found, Scaled) and found == fix(MAE(), "scale", tau=2.0, num_classes=10)


def test_a_fix_that_would_do_harm_warns(iris: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.warns(UserWarning, match="would do harm"):
        assert small(loss="mae", fix="scale", epochs=1).fit(*iris).loss_ == MAE()


def test_grid_search_goes_over_losses_and_numbers(iris: tuple[np.ndarray, np.ndarray]) -> None:
    grid = {
        "robustclassifier__loss": ["ce", GCE(0.7)],
        "robustclassifier__learning_rate": [1e-9, 0.1],
    }
    search = GridSearchCV(scaled(small(epochs=15)), grid, cv=3).fit(*iris)
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    assert search.best_params_["robustclassifier__learning_rate"] == 0.1
    assert search.best_score_ > 0.9


def test_labels_may_be_words(iris: tuple[np.ndarray, np.ndarray]) -> None:
    features, target = iris
    words = np.array(["setosa", "versicolor", "virginica"])[target]
    by_word, by_number = small().fit(features, words), small().fit(features, target)
    assert by_word.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert np.array_equal(by_word.predict(features), by_word.classes_[by_number.predict(features)])
    assert np.array_equal(by_word.predict_proba(features), by_number.predict_proba(features))


def test_a_weight_of_zero_is_an_absence(iris: tuple[np.ndarray, np.ndarray]) -> None:
    features, target = iris
    weight = np.ones(len(target))
    weight[::3] = 0
    kept = weight > 0
    weighted = small(batch_size=16).fit(features, target, sample_weight=weight)
    without = small(batch_size=16).fit(features[kept], target[kept])
    assert np.array_equal(weighted.predict_proba(features), without.predict_proba(features))
    assert np.array_equal(np.isnan(weighted.margins_), ~kept)
    assert np.array_equal(weighted.margins_[kept], without.margins_)


def test_weights_count(iris: tuple[np.ndarray, np.ndarray]) -> None:
    features, target = iris
    heavy = np.where(target == 2, 100.0, 1.0)
    plain, weighted = small().fit(features, target), small().fit(features, target, sample_weight=heavy)
    assert (weighted.predict(features) == 2).sum() > (plain.predict(features) == 2).sum()
    scale_free = small().fit(features, target, sample_weight=7 * heavy)
    np.testing.assert_allclose(scale_free.predict_proba(features), weighted.predict_proba(features))


@pytest.mark.parametrize("loss", ["auto", "peer"])
def test_the_random_state_decides_and_no_other_is_touched(iris: tuple[np.ndarray, np.ndarray], loss: str) -> None:
    features, _ = iris
    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = small(loss=loss).fit(*iris).predict_proba(features)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    torch.manual_seed(6)
    assert np.array_equal(small(loss=loss).fit(*iris).predict_proba(features), first)
    assert not np.array_equal(small(loss=loss, random_state=1).fit(*iris).predict_proba(features), first)


def test_it_survives_clone_and_pickle(iris: tuple[np.ndarray, np.ndarray]) -> None:
    model = small(loss=GCE(0.4), hidden_layer_sizes=(7, 5)).fit(*iris)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(iris[0]), model.predict_proba(iris[0]))
    copy = clone(model)
    assert copy.get_params() == model.get_params() and not hasattr(copy, "network_")
    assert copy.set_params(loss="mae").loss == "mae"


def test_float32_stays_float32(iris: tuple[np.ndarray, np.ndarray]) -> None:
    features, target = iris
    model = small().fit(features.astype(np.float32), target)
    assert model.predict_proba(features.astype(np.float32)).dtype == np.float32
    assert next(model.network_.parameters()).dtype == torch.float32
    assert small().fit(features, target).predict_proba(features).dtype == np.float64


def test_hidden_layers_have_the_given_sizes(iris: tuple[np.ndarray, np.ndarray]) -> None:
    def shapes(*sizes: int) -> list[tuple[int, ...]]:
        network = small(hidden_layer_sizes=sizes, epochs=1).fit(*iris).network_
        return [tuple(each.weight.shape) for each in network if isinstance(each, torch.nn.Linear)]

    assert shapes() == [(3, 4)]
    assert shapes(6, 5) == [(6, 4), (5, 6), (3, 5)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "expects epochs >= 1, got epochs=0"),
        ({"batch_size": 1.5}, "expects an integer batch_size >= 1, got batch_size=1.5"),
        ({"learning_rate": -1}, "expects a finite learning_rate >= 0, got -1"),
        ({"weight_decay": "much"}, "expects a finite weight_decay >= 0, got 'much'"),
        ({"hidden_layer_sizes": 100}, r"expects hidden_layer_sizes such as \(100,\), got 100"),
        ({"hidden_layer_sizes": (0,)}, "expects hidden_layer_sizes >= 1, got hidden_layer_sizes=0"),
        ({"tau": 2.6}, "expects a fix with tau, got tau=2.6"),
        ({"fix": "scale"}, "expects a loss to fix, got fix='scale', loss='auto'"),
        ({"fix": "scale", "loss": "Auto"}, "expects a loss to fix, got fix='scale', loss='Auto'"),
        ({"loss": "mea"}, "unknown loss 'mea', did you mean 'mae'"),
        ({"loss": "atuo"}, "unknown loss 'atuo', did you mean 'auto'"),
        ({"loss": "mae", "fix": "stretch"}, "unknown fix 'stretch'"),
        ({"device": "gpu"}, "RobustClassifier, device 'gpu': Expected one of cpu, cuda, "),
    ],
)
def test_a_wrong_setting_is_one_clear_line(
    iris: tuple[np.ndarray, np.ndarray], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CurriculossError, match=message) as error:
        RobustClassifier(**settings).fit(*iris)
    assert "\n" not in str(error.value)


def test_names_of_losses_may_have_capitals(iris: tuple[np.ndarray, np.ndarray]) -> None:
    small_, capital = (small(loss=name).fit(*iris).predict_proba(iris[0]) for name in ("auto", "Auto"))
    assert np.array_equal(small_, capital)


def test_one_class_is_refused(iris: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="at least 2 classes, got 1 class: 0"):
        small().fit(iris[0][:50], iris[1][:50])
