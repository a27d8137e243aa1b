"""CPUs and features that LLVM does not know are refused by name: it would compile plain code and go on."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")

from farm.compiler.targets import TargetError, check_target, target_from

ARM64 = {"kind": "llvm", "mtriple": "aarch64-linux-android"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"mcpu": "cortex-a7777"}, "the CPU 'cortex-a7777' of aarch64-linux-android"),
        ({"mcpu": "cortex-a76", "mattr": ["+neon", "+nosuch"]}, "the feature '\\+nosuch'"),
        ({"mattr": ["neon"]}, "the feature 'neon'"),
    ],
)
def test_unknown_cpus_and_features_are_refused_by_name(fields: dict[str, object], named: str) -> None:
    with pytest.raises(TargetError, match=named):
        check_target(target_from({**ARM64, **fields}))
    with pytest.raises(TargetError, match=named):
        check_target(target_from({"kind": "opencl", "host": {**ARM64, **fields}}))


@pytest.mark.parametrize("fields", [{}, {"mcpu": "generic"}, {"mcpu": "cortex-a76", "mattr": ["+dotprod", "-sve"]}])
def test_known_ones_are_taken(fields: dict[str, object]) -> None:
    check_target(target_from({**ARM64, **fields}))
