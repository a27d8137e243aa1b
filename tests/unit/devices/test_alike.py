"""Identical phones: one function says so for jobs' pools, the label `alike` and scripts."""

from dataclasses import asdict, replace

import pytest

from farm.common.selector import normalise
from farm.devices.identity.naming_rules import alike, differences, labels_of
from farm.model.identity import DeviceIdentity, Gpu, Soc

PHONE = DeviceIdentity(
    abi="arm64-v8a",
    soc=Soc(model="SM8650"),
    gpu=Gpu("adreno", "Adreno 750"),
    clock_policy="schedutil",
    targets={"cpu": {"kind": "llvm", "mcpu": "cortex-x4"}},
)


def of(identity=PHONE, bundle="b1"):
    found = alike(identity, bundle)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("field", "identity", "bundle"),
    [
        ("soc", replace(PHONE, soc=Soc(model="SDM845")), "b1"),
        ("soc", replace(PHONE, soc=Soc(name="Snapdragon 8 Gen 3")), "b1"),
        ("gpu", replace(PHONE, gpu=Gpu("adreno", "Adreno 740")), "b1"),
        ("gpu", replace(PHONE, gpu=Gpu("adreno", "Adreno 750", cores=6)), "b1"),
        ("abi", replace(PHONE, abi="armeabi-v7a"), "b1"),
        ("targets", replace(PHONE, targets={"cpu": {"kind": "llvm"}}), "b1"),
        ("bundle", PHONE, "b2"),
        ("clock_policy", replace(PHONE, clock_policy="performance"), "b1"),
    ],
)
def test_each_field_splits(field, identity, bundle):
    other = of(identity, bundle)
    assert other != of()
    assert other.mark != of().mark
    assert differences(asdict(of()), asdict(other)) == (field,)
    assert labels_of(identity, "p", bundle=bundle)["alike"] == other.mark != labels_of(PHONE, "p", bundle="b1")["alike"]


def test_what_decides_no_time_splits_nobody():
    twin = replace(
        PHONE, hardware_serial="S2", fingerprint="other", android_release="15", soc=Soc("SM8650", source="x")
    )
    assert of(twin) == of()
    assert of(twin).mark == of().mark
    assert differences(asdict(of()), asdict(of(twin))) == ()


def test_a_mark_is_a_label_value_as_it_is():
    assert normalise(of().mark) == of().mark


def test_nothing_is_alike_before_it_is_known():
    assert alike(None, "b1") is None
    assert alike(PHONE, "") is None
    assert "alike" not in labels_of(PHONE, "p")
