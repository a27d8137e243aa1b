"""What people type for a target means one thing with a phone and one without; what fits no machine is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import target as tvm_target

from farm.common.errors import Code, UserError
from farm.devices.identity.targets import BOARDS, NAMES, ForeignTargetError, named_target, target_on
from farm.model.identity import target_typed
from tests.support.errors import raises_code

PHONE = {
    "cpu": {"kind": "llvm", "mtriple": "aarch64-linux-android", "mcpu": "cortex-a76", "num-cores": 8},
    "opencl": {"kind": "opencl", "host": {"kind": "llvm", "mtriple": "aarch64-linux-android"}},
}


@pytest.mark.parametrize("name", NAMES)
def test_tvm_takes_every_name(name):
    target = named_target(name)
    built = tvm_target.Target(dict(target))
    assert str(built.kind.name) == "llvm"
    if name in BOARDS:
        assert int(built.attrs["num-cores"]) == BOARDS[name].cores
        assert str(built.attrs["mcpu"]).startswith("cortex-a")
        assert str(built.attrs["mtriple"]).endswith("gnueabihf" if BOARDS[name].bits == 32 else "-linux-gnu")


def test_old_raspberries_get_no_instruction_of_newer_ones():
    assert named_target("rpi4")["mattr"] == ["+neon"]
    assert named_target("rpi5")["mattr"] == ["+neon", "+fullfp16", "+dotprod"]


def test_a_name_that_is_none_is_told_with_the_nearest():
    with raises_code(Code.NO_SUCH_TARGET, match="no target 'rpi44' without a phone") as caught:
        named_target("rpi44")
    assert "did you mean 'rpi4'?" in caught.value.hint
    with raises_code(Code.NO_SUCH_TARGET, match="p has no target 'rpi4'") as caught:
        target_on("rpi4", PHONE, "p")
    assert caught.value.hint == "its targets: cpu, opencl"


@pytest.mark.parametrize(
    ("asked", "own", "hint"),
    [
        ("adreno", {"cpu": {}}, "its targets: cpu; it has no GPU that is known, as virtual phones have none"),
        ("vulcan", PHONE, "did you mean 'vulkan'? its targets: cpu, opencl"),
        ("vulkan", PHONE, "its targets: cpu, opencl"),
        ("vulcan", {"cpu": {}}, "did you mean 'vulkan'? its targets: cpu; it has no GPU that is known, as virtual "),
    ],
)
def test_a_gpus_target_on_a_phone_without_it(asked, own, hint):
    with raises_code(Code.NO_SUCH_TARGET, match=f"p has no target '{asked}'") as caught:
        target_on(asked, own, "p")
    assert caught.value.hint.startswith(hint)


def test_a_tag_or_dict_of_a_gpu_gets_the_phones_cpu_as_its_host():
    assert target_on("opencl", PHONE, "p") is PHONE["opencl"]
    assert target_on("qcom/adreno-opencl", PHONE, "p") == {"tag": "qcom/adreno-opencl", "host": PHONE["cpu"]}
    wanted = {"kind": "opencl", "max_num_threads": 128}
    assert target_on(json.dumps(wanted), PHONE, "p") == wanted | {"host": PHONE["cpu"]}


def test_a_dict_of_a_cpu_is_completed_and_must_be_for_the_phones_architecture():
    found = target_on('{"kind": "llvm", "mcpu": "cortex-a55"}', PHONE, "p")
    assert found == {"kind": "llvm", "mcpu": "cortex-a55", "mtriple": "aarch64-linux-android", "num-cores": 8}
    for triple in ("armv7a-linux-androideabi", "x86_64-linux-gnu", "aarch64-linux-gnu"):
        with pytest.raises(ForeignTargetError, match=f"is for {triple}, and p is aarch64-linux-android"):
            target_on(json.dumps({"kind": "llvm", "mtriple": triple}), PHONE, "p")


@given(st.text() | st.dictionaries(st.text(), st.text()).map(json.dumps) | st.text().map("{{{}".format))
def test_any_text_is_a_target_or_refused_in_words(text):
    for find in (named_target, lambda text: target_on(text, PHONE, "p")):
        try:
            found = find(text)
        except UserError as error:
            found = {"said": error.message}
        assert isinstance(found, dict)
        assert found.get("said", "words")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llvm -mcpu=cortex-a55 -mattr=+neon,-sve", {"mcpu": "cortex-a55", "mattr": ["+neon", "-sve"]}),
        ("llvm --num-cores=4 -device=arm_cpu -model=pixel2", {"num-cores": 4, "mcpu": None}),
        ("pixel2", {"mattr": ["+neon"], "mcpu": None}),
    ],
)
def test_strings_of_tvmc_and_names_of_tutorials_are_for_the_phone(text, expected):
    built = tvm_target.Target(dict(target_on(text, PHONE, "pixel")))
    attributes = {name: built.attrs.get(name) for name in expected}
    assert {name: list(value) if name == "mattr" else value for name, value in attributes.items()} == expected
    assert built.attrs["mtriple"] == "aarch64-linux-android"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("llvm", PHONE["cpu"]),
        ("llvm -target=aarch64-linux-android", {"kind": "llvm", "mtriple": "aarch64-linux-android", "num-cores": 8}),
        ("opencl,llvm -mtriple=aarch64-linux-android", {
            "kind": "opencl", "host": {"kind": "llvm", "mtriple": "aarch64-linux-android"}
        }),
        ("opencl -device=adreno, llvm", {"tag": "qcom/adreno-opencl", "host": PHONE["cpu"]}),
    ],
)  # fmt: skip
def test_targets_as_tvmc_has_them_are_completed_by_the_phone(text, meant):
    assert target_on(text, PHONE, "p") == meant


@pytest.mark.parametrize(
    "text", ["opencl -device=adreno -mtriple=aarch64-linux-android", "vulkan -mtriple=aarch64-linux-android"]
)
def test_the_mtriple_of_a_gpu_is_its_hosts(text):
    assert named_target(text)["host"] == {"kind": "llvm", "mtriple": "aarch64-linux-android"}


@pytest.mark.parametrize("name", ["opencl", "adreno"])
def test_the_hint_for_a_gpu_without_a_phone_is_a_target(name):
    with raises_code(Code.NO_SUCH_TARGET) as caught:
        named_target(name)
    assert "host" in named_target(caught.value.hint.split("'")[1])


@pytest.mark.parametrize("name", ["cpu", "opencl"])
def test_a_shown_target_can_be_typed(name):
    assert target_on(target_typed(PHONE[name]), PHONE, "p") == PHONE[name]


def test_opencl_for_adreno_is_the_tag_with_the_phones_cpu():
    assert target_on("opencl -device=adreno", PHONE, "pixel") == {"tag": "qcom/adreno-opencl", "host": PHONE["cpu"]}
    with pytest.raises(ForeignTargetError, match="armv7l-linux-gnueabihf"):
        target_on("rasp3b", PHONE, "pixel")
    with raises_code(Code.NO_SUCH_TARGET, match="an option without a value: -mcpu"):
        named_target("llvm -mcpu")
