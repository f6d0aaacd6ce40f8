"""Losses by name."""

from __future__ import annotations

import re

import pytest

from curriculoss.losses import AEL, AGCE, AUL, CE, FL, GCE, MAE, RCE, SCE, TCE, available, get, registry

FAMILIES = {
    "ce": CE,
    "fl": FL,
    "mae": MAE,
    "rce": MAE,
    "aul": AUL,
    "agce": AGCE,
    "ael": AEL,
    "gce": GCE,
    "sce": SCE,
    "tce": TCE,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_lower_case_name_and_its_defaults(name):
    assert name in available() and name == name.lower()
    assert type(get(name)) is FAMILIES[name] is registry.factory(name)
    assert get(name) == get(name.upper()) == FAMILIES[name]()


def test_reverse_cross_entropy_is_mean_absolute_error():
    assert RCE is MAE and get("rce") == get("mae") == MAE()


def test_names_are_unique_and_ordered_as_registered():
    assert len(set(available())) == len(available())
    assert [name for name in available() if name in FAMILIES] == list(FAMILIES)


def test_hyperparameters_are_passed_on():
    assert get("gce", q=0.3) == GCE(q=0.3) != get("gce")
    assert get("AUL", a=2.0, q=2.0) == AUL(2.0, 2.0)
    with pytest.raises(ValueError, match=re.escape("GCE expects 0 < q <= 1, got q=1.5")):
        get("gce", q=1.5)


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("gcee", "gce"), ("maee", "mae"), ("AGC", "agce"), ("tcee", "tce"), ("mea", "mae"), ("MES", "mse"), ("ec", "ce")],
)
def test_unknown_name_is_answered_with_the_nearest_and_all_others(wrong, nearest):
    message = f"unknown loss {wrong!r}, did you mean {nearest!r}? Available: {', '.join(available())}"
    with pytest.raises(ValueError, match=re.escape(message)):
        get(wrong)


@pytest.mark.parametrize("wrong", ["", "0", "ÿ"])
def test_name_that_is_near_to_nothing_is_answered_with_all(wrong):
    with pytest.raises(ValueError, match=re.escape(f"unknown loss {wrong!r}. Available: {', '.join(available())}")):
        get(wrong)


def test_name_is_a_string():
    with pytest.raises(TypeError, match="expected the name of a loss, such as 'mae', got None"):
        get(None)


def test_unknown_hyperparameter_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="aul has no hyperparameter 'alpha'; it takes a, q"):
        get("aul", alpha=1.0)
    with pytest.raises(ValueError, match="mae has no hyperparameter 'q'; it takes none"):
        get("mae", q=1.0)


def test_register_adds_a_name_for_a_class_or_a_function(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    before = available()

    @registry.register("mine", "ours")
    def mine(q: float) -> GCE:
        return GCE(q / 2)

    assert available() == (*before, "mine", "ours")
    assert get("mine", q=1.0) == get("ours", q=1.0) == GCE(0.5)
    with pytest.raises(ValueError, match="mine: missing a required argument: 'q'"):
        get("mine")
