"""What TVM does by itself is measured after a search, and costs the search nothing when it fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tvm")

from farm.tuning.search import measure_defaults


def database(*names: str) -> Any:
    tunables = [
        SimpleNamespace(task=SimpleNamespace(workload=name, name=name, default_s=0.0), module=name) for name in names
    ]
    own = [SimpleNamespace(workload=name) for name in names]
    return SimpleNamespace(tunables=tunables, own=lambda: own, target=None)


def test_a_schedule_that_tvm_cannot_make_is_told_and_the_others_are_tried() -> None:
    tried, said = [], []

    def schedule(module: str) -> str:
        tried.append(module)
        if module == "bad":
            raise ValueError("InternalError: Check failed: no such rule")
        return module

    class Builder:
        def build(self, inputs: Any) -> Any:
            raise RuntimeError("the builder is gone")

    builder: Any = Builder()
    runner: Any = None
    found = measure_defaults(database("bad", "good"), builder, runner, schedule, report=said.append)
    assert found == {}
    assert tried == ["bad", "good"]
    assert len(said) == 2
    assert "own schedule of bad is not known" in said[0]
