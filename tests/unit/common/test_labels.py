"""Labels and aliases: normalisation, uniqueness, what a device is called."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.selector import natural, normalise, unique
from farm.devices.identity.naming_rules import DERIVED_LABELS, aliases_of, labels_of
from farm.model.identity import DeviceIdentity, Gpu, Soc
from tests.support.golden import rows

POCO = DeviceIdentity(
    vendor="Xiaomi",
    model="24069PC21I",
    android_release="15",
    sdk=35,
    abi="arm64-v8a",
    soc=Soc("SM8635", "Snapdragon 8s Gen3", "Qualcomm"),
    gpu=Gpu("adreno", "Adreno 735"),
)


@pytest.mark.parametrize(("raw", "value"), rows(__file__, "normalised"))
def test_normalise(raw, value):
    assert normalise(raw) == value


@given(st.text())
def test_normalised_values_are_legal_keys_and_fixed_points(text):
    value = normalise(text)
    assert re.fullmatch(r"(?:[a-z0-9._][a-z0-9._-]*)?", value)
    assert normalise(value) == value


@given(st.lists(st.sampled_from(["a", "a-2", "b"]), max_size=12))
def test_unique_never_repeats(values):
    taken = []
    for value in values:
        taken.append(unique(value, taken))
    assert len(set(taken)) == len(taken)


def test_unique_counts_from_two():
    assert unique("pixel-6", {"pixel-6"}) == "pixel-6-2"
    assert unique("pixel-6", {"pixel-6", "pixel-6-2"}) == "pixel-6-3"


def test_labels_are_normalised_and_unknown_facts_are_absent():
    assert labels_of(POCO, "poco-f6", "Lab A", "0123 ABC") == {
        "name": "poco-f6",
        "pool": "lab-a",
        "serial": "0123-abc",
        "vendor": "xiaomi",
        "model": "24069pc21i",
        "soc": "sm8635",
        "soc-name": "snapdragon-8s-gen3",
        "soc-vendor": "qualcomm",
        "gpu": "adreno-735",
        "gpu-family": "adreno",
        "abi": "arm64-v8a",
        "android": "15",
        "sdk": "35",
    }
    assert labels_of(None, "unit", serial="X1") == {"name": "unit", "serial": "x1"}


def test_aliases_are_the_tvm_keys():
    labels = labels_of(POCO, "poco-f6")
    assert aliases_of(POCO, "poco-f6", labels, ["Big Phones", "android"]) == (
        "android",
        "adreno-735",
        "sm8635",
        "poco-f6",
        "big-phones",
    )
    assert aliases_of(None, "unit", {"name": "unit"}) == ("unit",)


def test_derived_labels_are_those_that_labels_of_sets():
    whole = replace(POCO, virtual=True, gpu=Gpu("adreno", "Adreno 735"))
    assert set(labels_of(whole, "poco", "desk", "S1", "b1", "lab1")) == DERIVED_LABELS


def test_names_are_listed_by_their_numbers():
    assert sorted(("a-10", "b", "a-2", "a", "A-1"), key=natural) == ["a", "A-1", "a-2", "a-10", "b"]
