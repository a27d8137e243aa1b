"""A host with too little memory for the reference is told of once: more attempts have no more memory."""

from types import SimpleNamespace
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

from farm.common.errors import Code
from tests.support.errors import raises_code

pytest.importorskip("tvm")

from farm.common.errors import ExitCode, Fault
from farm.compiler import reference
from farm.compiler.inputs import filled
from farm.compiler.model import TensorSpec

INPUTS = {"x": np.zeros(1_000_000, np.float32)}
MODEL = SimpleNamespace(name="big.onnx", key="0", inputs=(TensorSpec("x", (1_000_000,), np.dtype(np.float32)),))


@pytest.fixture
def fails(monkeypatch):
    """Makes TVM's machine raise this."""

    def fail(error):
        monkeypatch.setattr(reference, "compile_model", lambda *_: None)
        monkeypatch.setattr(reference.relax, "VirtualMachine", Mock(side_effect=error))

    return fail


@pytest.mark.parametrize("said", [RuntimeError("TVMError: std::bad_alloc"), MemoryError()])
def test_no_memory_on_the_host_ends_the_job_with_one_sentence(said, tmp_path, fails):
    fails(said)
    with raises_code(
        Code.HOST_OUT_OF_MEMORY, match=r"big.onnx: this host .*: the inputs alone are 4 MB, and it has"
    ) as caught:
        reference.reference_for(MODEL, INPUTS, tmp_path)
    assert caught.value.fault is Fault.USER  # which is what says that no attempt follows: farm.head.queue.retry
    assert caught.value.exit_code == ExitCode.FAILED


@pytest.mark.parametrize("shape", [(1 << 40,), (10**6, 10**6, 10**6, 10**6)])
def test_inputs_that_no_host_has_memory_for_are_reported(shape):
    """A package's manifest may name any shape; numpy has a ValueError for the second."""
    spec = TensorSpec("x", shape, np.dtype(np.float32))
    model = SimpleNamespace(name="big.farm.tar", inputs=(spec,))
    with (
        raises_code(Code.HOST_OUT_OF_MEMORY, match=r"big.farm.tar: this host has too little memory"),
        reference.within_memory(model.name, model.inputs),
    ):
        filled(model, {}, "zeros")


def test_another_failure_stays_what_it_is(tmp_path, fails):
    fails(RuntimeError("another one"))
    with pytest.raises(RuntimeError, match="another one"):
        reference.reference_for(MODEL, INPUTS, tmp_path)


def test_what_is_kept_of_a_reference_has_the_types_of_the_outputs(tmp_path):
    """numpy's files do not know bfloat16."""
    wanted = np.arange(3).astype(ml_dtypes.bfloat16)
    kept = reference.Reference((wanted,), (wanted,), independent=True, by="onnx.reference")
    reference._save(tmp_path / "kept.npz", kept)
    found = reference._load(tmp_path / "kept.npz", [TensorSpec("y", (3,), wanted.dtype)])
    assert found.outputs[0].dtype == found.host_outputs[0].dtype == wanted.dtype
    assert np.array_equal(found.outputs[0], wanted)
