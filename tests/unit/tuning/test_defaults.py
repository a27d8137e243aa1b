"""What TVM does by itself is measured after a search, and costs the search nothing when it fails."""

from types import SimpleNamespace

import pytest

pytest.importorskip("tvm")

from farm.tuning.search import measure_defaults


def database(*names):
    tunables = [
        SimpleNamespace(task=SimpleNamespace(workload=name, name=name, default_s=0.0), module=name) for name in names
    ]
    own = [SimpleNamespace(workload=name) for name in names]
    return SimpleNamespace(tunables=tunables, own=lambda: own, target=None)


def test_a_schedule_that_tvm_cannot_make_is_told_and_the_others_are_tried():
    tried, said = [], []

    def schedule(module):
        tried.append(module)
        if module == "bad":
            raise ValueError("InternalError: Check failed: no such rule")
        return module

    class Builder:
        def build(self, inputs):
            raise RuntimeError("the builder is gone")

    builder = Builder()
    runner = None
    found = measure_defaults(database("bad", "good"), builder, runner, schedule, report=said.append)
    assert found == {}
    assert tried == ["bad", "good"]
    assert len(said) == 2
    assert "own schedule of bad is not known" in said[0]
