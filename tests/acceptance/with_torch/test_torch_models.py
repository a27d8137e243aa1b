"""Programs of torch.export: their numbers are PyTorch's, and what is wrong with a file is said."""

import io
import os
import zipfile

import numpy as np
import pytest
import tvm
from tvm import relax

from farm.common.errors import Code, ModelError
from farm.compiler.compile import Recipe, compile_model
from farm.compiler.load import import_model, read
from farm.simulation.virtual_farm import phones_of, virtual_farm
from tests.support.errors import raises_code

torch = pytest.importorskip("torch", reason="PyTorch is not here: make acceptance installs its CPU build if it can")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.normal = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.dense = torch.nn.Linear(8, 5)

    def forward(self, image, shift):
        features = torch.relu(self.normal(self.convolution(image))).mean((2, 3))
        return self.dense(features) + shift, features


def saved(net, *inputs, **options):
    packed = io.BytesIO()
    torch.export.save(torch.export.export(net.eval(), inputs, **options), packed)
    return packed.getvalue()


@pytest.fixture(scope="module")
def fixed():
    torch.manual_seed(0)
    return saved(Net(), torch.randn(1, 3, 16, 16), torch.randn(5))


@pytest.fixture(scope="module")
def any_batch():
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=64)
    return saved(Net(), torch.randn(2, 3, 16, 16), torch.randn(5), dynamic_shapes={"image": {0: batch}, "shift": None})


def test_a_program_computes_what_pytorch_does(any_batch):
    source = read(any_batch, "net.pt2")
    assert [spec.name for spec in source.inputs] == ["image", "shift"]
    with raises_code(Code.BAD_SHAPE, match=r"input 'image', shape s[0-9]+x3x16x16, leaves dimension 0"):
        import_model(source)
    with raises_code(Code.BAD_SHAPE, match="is 65, and it was exported for 1 to 64"):
        import_model(source, {"image": (65, 3, 16, 16)})
    model = import_model(source, {"image": (3, 3, 16, 16)})
    assert [spec.shape for spec in model.outputs] == [(3, 5), (3, 8)]
    random = np.random.default_rng(0)
    inputs = {spec.name: random.standard_normal(spec.shape).astype(spec.dtype) for spec in model.inputs}
    wanted = source.reference(inputs)
    assert wanted.by.startswith("torch 2.")
    machine = relax.VirtualMachine(compile_model(model, Recipe({"kind": "llvm"})), tvm.cpu())
    got = machine["main"](*map(tvm.runtime.tensor, inputs.values()))
    for ours, theirs in zip(got, wanted.outputs, strict=True):
        assert np.allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-6)


class Decomposition(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.svdvals(x)


class Counting(torch.nn.Module):
    def forward(self, x, times: int):
        return x * times


def test_what_cannot_be_used_is_said(fixed):
    with pytest.raises(ModelError, match=r"does not support _linalg_svd.default \(node '.*'\)"):
        import_model(read(saved(Decomposition(), torch.randn(3, 3)), "net.pt2"))
    with pytest.raises(ModelError, match="is no tensor"):
        read(saved(Counting(), torch.randn(3), 2), "net.pt2")
    with pytest.raises(ModelError, match="cut short or damaged"):
        read(fixed[: len(fixed) // 2], "net.pt2")
    weights = io.BytesIO()
    torch.save(Net().state_dict(), weights)
    with pytest.raises(ModelError, match="is a pickle") as caught:
        read(weights.getvalue(), "net.pth")
    assert "torch.export.save" in caught.value.hint


class RunsCode:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_pickle_in_a_program_is_refused_and_not_run(fixed, tmp_path):
    evil, packed = io.BytesIO(), io.BytesIO()
    torch.save(RunsCode(tmp_path / "ran"), evil)
    with zipfile.ZipFile(io.BytesIO(fixed)) as before, zipfile.ZipFile(packed, "w") as after:
        pickled = [name for name in before.namelist() if name.endswith("sample_inputs/model.pt")]
        for name in before.namelist():
            after.writestr(name, evil.getvalue() if name in pickled else before.read(name))
    assert pickled
    with pytest.raises(ModelError, match="cannot read it"):
        read(packed.getvalue(), "net.pt2")
    assert not (tmp_path / "ran").exists()


def test_a_program_runs_on_a_phone_and_is_checked_against_pytorch(fixed, tmp_path):
    (tmp_path / "net.pt2").write_bytes(fixed)
    with virtual_farm(phones_of(["oneplus-12"])) as farm:
        farm.wait_ready(1)
        done = farm.farm("run", str(tmp_path / "net.pt2"), "--on", "android", "--json")
    assert done.returncode == 0, done.stderr
    assert '"reference": "torch 2.' in done.stdout
