"""ReLU6 and its like as operators that every later pass of TVM knows.

TVM 0.27 has two ways to cut off values, and `relax.transform.ToMixedPrecision` fails on both: `relax.clip`, whose
bounds are no tensors, and the ONNX front end's functions in TensorIR. Every MobileNet has one of them. Here they become
`relax.maximum` and `relax.minimum`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.frontend.onnx import onnx_frontend

from farm.compiler.model import IRModule

_CONVERTER = "_impl_v13"  # where the front end keeps the conversion for opset 13 and later, and 11 calls it
_CLIP = tvm.ir.Op.get("relax.clip")


def without_clips(module: IRModule) -> IRModule:
    """The module with each `relax.clip` between numbers as a maximum and a minimum."""
    cutter = _Cutter(module)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            cutter.builder_.update_func(variable, cutter.visit_expr(function))
    return cutter.builder_.get()


@contextlib.contextmanager
def onnx_clips_in_relax() -> Iterator[None]:
    """Within, TVM's ONNX front end converts a Clip between constants to Relax; others as it always does."""
    original = vars(onnx_frontend.Clip)[_CONVERTER]

    def convert(cls: Any, builder: Any, inputs: Any, attributes: Any, parameters: Any) -> Any:
        x, bounds = inputs[0], [inputs[i] for i in (1, 2)]
        if not all(bound is None or isinstance(bound, tvm.ir.GenericConst) for bound in bounds):
            return original.__func__(cls, builder, inputs, attributes, parameters)
        for bound, cut in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
            if bound is not None and bound.value.numpy() == bound.value.numpy():  # NaN: as if there were no bound
                x = builder.emit(cut(x, bound))
        return x

    setattr(onnx_frontend.Clip, _CONVERTER, classmethod(convert))
    try:
        yield
    finally:
        setattr(onnx_frontend.Clip, _CONVERTER, original)


@mutator
class _Cutter(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if call.op != _CLIP:
            return call
        x, *bounds = call.args
        for bound, cut in zip(bounds, (relax.op.maximum, relax.op.minimum), strict=True):
            x = self.builder_.emit(cut(x, relax.const(bound.value, str(call.args[0].ty.dtype))))
        return x
