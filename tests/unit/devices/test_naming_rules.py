"""Adoption rules and device names; which phones are identical, for jobs' pools, the label `alike` and scripts."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code
from farm.common.selector import normalise
from farm.devices.identity.naming_rules import AdoptRule, adopting_rule, alike, device_name, differences, labels_of
from farm.model.identity import DeviceIdentity, Gpu, Soc
from tests.support.errors import raises_code

POCO = DeviceIdentity(
    vendor="Xiaomi", model="24069PC21I", market_name="POCO F6", soc=Soc("SM8635"), gpu=Gpu("adreno", "Adreno 735")
)
ONEPLUS = DeviceIdentity(vendor="OnePlus", model="PJD110", market_name="一加 12")
REALME = DeviceIdentity(vendor="realme", model="RMX3560", market_name="真我GT NEO 3")


def test_the_first_rule_that_matches_decides():
    rules = [
        AdoptRule("virtual=yes", "demo"),
        AdoptRule("gpu=adreno-735", "Fast Ones", "{vendor}-{soc}"),
        AdoptRule("android", "rest"),
    ]
    assert adopting_rule(rules, POCO, "S1") is rules[1]
    assert device_name(POCO, "S1", set(), rules[1].name) == "xiaomi-sm8635"
    assert adopting_rule(rules, ONEPLUS, "S2") is rules[2]


def test_without_a_matching_rule_a_phone_is_left_alone():
    assert adopting_rule((), POCO, "S1") is None
    assert adopting_rule((AdoptRule("serial=s9"),), POCO, "S1") is None
    assert adopting_rule((AdoptRule("serial=s1"),), POCO, "S1") is not None


def test_names_are_unique_and_never_another_alias():
    assert device_name(POCO, "S1", set()) == "poco-f6"
    assert device_name(POCO, "S1", {"poco-f6"}) == "poco-f6-2"
    assert device_name(DeviceIdentity(model="Android"), "S1", set()) == "android-2"
    assert device_name(POCO, "S1", set(), host="lab2") == "poco-f6-lab2", "another host's phones have other names"
    assert device_name(POCO, "S1", {"poco-f6-lab2"}, "{soc}", "lab2") == "sm8635-lab2"
    assert device_name(POCO, "S1", set(), "{gpu}") == "adreno-735-2"


def test_a_name_that_cannot_be_spelt_falls_back():
    assert device_name(ONEPLUS, "S1", set()) == "pjd110"
    assert device_name(REALME, "S1", set()) == "rmx3560", "half of a market name is another phone's"
    assert device_name(DeviceIdentity(), "127.0.0.1:5555", set()) == "127.0.0.1-5555"
    assert device_name(None, "ABC", set()) == "abc"
    assert device_name(None, "一", set()) == "phone"


@pytest.mark.parametrize("name", ["{modle}", "{model!r}", "{model:>9}", "{", "{0}", "{model.x}"])
def test_a_bad_template_is_refused_with_the_rule_named(name):
    with raises_code(Code.BAD_CONFIG) as caught:
        AdoptRule("android", name=name).check()
    assert "'android'" in caught.value.message


def test_a_misspelt_field_names_the_nearest():
    with raises_code(Code.BAD_CONFIG) as caught:
        AdoptRule("android", name="{modle}").check()
    assert caught.value.hint == "nearest is {model}"


def test_a_bad_selector_is_refused():
    with raises_code(Code.BAD_SELECTOR):
        AdoptRule("gpu=").check()


texts = st.text(max_size=30)


@given(texts, texts, texts, texts, st.sets(texts.map(normalise), max_size=5))
def test_every_phone_gets_a_free_legal_name(model, market, vendor, serial, taken):
    name = device_name(DeviceIdentity(vendor=vendor, model=model, market_name=market), serial, taken)
    assert name
    assert normalise(name) == name
    assert name not in taken


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
