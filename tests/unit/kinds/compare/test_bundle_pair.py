"""Which two bundles may be compared on a phone, and what a worker may ask for."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.bundle.model import Bundle, Platform
from farm.common.errors import Code, ProtocolError
from farm.jobs.attempt import answer_worker
from farm.kinds import KINDS
from farm.kinds.compare.executor import BundleHost, check_pair
from farm.model.identity import DeviceIdentity
from farm.model.specs import spec_from_wire
from tests.support.errors import raises_code

MODEL, OTHER = "a" * 64, "b" * 64
A = Bundle("old", "1" * 64, "x86_64", (), Path("files"), "default", (), "0.27.0", False, platform=Platform.LINUX)
B = replace(A, name="new", hash="2" * 64)
VIRTUAL = DeviceIdentity(abi="x86_64", virtual=True)


def test_two_bundles_of_one_tvm_for_the_phone_are_compared():
    check_pair(A, B, VIRTUAL, "unit")


@pytest.mark.parametrize(
    ("b", "identity", "said"),
    [
        (replace(A, name="again"), VIRTUAL, "old and again are the same bundle"),
        (replace(B, tvm_version="0.28.0"), VIRTUAL, "old is of TVM 0.27.0, bundle new of TVM 0.28.0"),
        (replace(B, tvm_version=""), VIRTUAL, "bundle new of TVM ?"),
        (
            replace(B, abi="arm64-v8a"),
            VIRTUAL,
            r"new is for arm64-v8a \(linux-glibc\), unit needs x86_64 \(linux-glibc\)",
        ),
        (replace(B, platform=Platform.ANDROID), VIRTUAL, r"new is for x86_64 \(android\)"),
        (B, DeviceIdentity(abi="x86_64"), r"old is for x86_64 \(linux-glibc\), unit needs x86_64 \(android\)"),
        (B, None, "unit is not identified"),
    ],
)
def test_others_are_refused_and_named(b, identity, said):
    with raises_code(Code.BUNDLES_NOT_COMPARABLE, match=said):
        check_pair(A, b, identity, "unit")


class Calls(list):
    """Leasing and the fleet, as far as they are asked."""

    async def allow_bundle_override(self, lease_id):
        self.append(("allow_bundle_override", lease_id))
        return "unit"

    async def use(self, name, bundle):
        self.append(("use", name, bundle.name))


async def test_a_worker_may_have_only_its_two_bundles_on_the_phone():
    calls = Calls()

    class AttemptContext:
        class lease:
            id = "lease-1"

    parts = SimpleNamespace(leasing=calls, fleet=SimpleNamespace(bundle_overrides=calls))
    host = BundleHost(AttemptContext, parts, None, {A.hash: A, B.hash: B})
    assert await answer_worker("bundle.use", {"bundle": B.hash}, host) == {}
    assert calls == [("allow_bundle_override", "lease-1"), ("use", "unit", "new")]
    for fields in ({"bundle": "3" * 64}, {"bundle": "new"}, {}):
        with pytest.raises(ProtocolError):
            await answer_worker("bundle.use", fields, host)
    assert len(calls) == 2


def compare(**fields):
    both = {"model": MODEL, "name": "a.onnx", "model_b": MODEL, "name_b": "a.onnx"}
    return spec_from_wire(KINDS, {"kind": "compare", "on": "android", **both, **fields})


def test_bundles_come_in_twos_and_with_one_build():
    assert compare(bundle="old", bundle_b="new").bundle_b == "new"
    assert compare(bundle="old", bundle_b="new", target_b="cpu").target == "cpu"
    with raises_code(Code.BAD_SPEC, match="two at a time"):
        compare(bundle_b="new")
    for more in ({"model_b": OTHER}, {"target_b": "adreno"}, {"precision_b": "float16"}, {"records_b": OTHER}):
        with raises_code(Code.BAD_SPEC, match="one build of one model"):
            compare(bundle="old", bundle_b="new", **more)
