"""The farm's own passes over Relax modules, where TVM 0.27 has none or is slow.

- Batch normalisation is folded into the convolution before it, by numpy. TVM can do it too (FoldBatchnormToConv2D, then
  FoldConstant), but compiles a function for every constant that it folds: 13 s of processor time for MobileNetV2, where
  numpy takes 0.07 s (`make bench NAME=models`). The sums are the same; they are made in float64 here.
- ReLU6 and its like become `relax.maximum` and `relax.minimum`. TVM has two ways to cut off values, `relax.clip`, whose
  bounds are no tensors, and the ONNX front end's functions in TensorIR; `relax.transform.ToMixedPrecision` fails on
  both.
- Open dimensions, which have names in Relax, get their sizes.
- The floating-point type in which a model computes; its inputs and outputs keep their types. `float32`: as the model
  was exported. `float16`: computes and adds up in half precision. `float16_acc32`: weights and activations in half
  precision, sums of convolutions and matrix products in single.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.frontend.onnx import onnx_frontend

from farm.common.errors import Code, UserError
from farm.compiler.model import Array, IRModule, TensorSpec, numpy_dtype, shape_error

_ADD, _CONVOLUTION, _NORMALISATION, _RESHAPE = (
    tvm.ir.Op.get(f"relax.{name}") for name in ("add", "nn.conv2d", "nn.batch_norm", "reshape")
)


def fold_batch_norm(module: IRModule) -> IRModule:
    """The module with every normalisation folded that follows a convolution alone, all its numbers being constants."""
    module = relax.transform.CanonicalizeBindings()(module)
    folder = _Folder(module)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            folder.enter(function)
            folder.builder_.update_func(variable, folder.visit_expr(function))
    return relax.transform.DeadCodeElimination()(folder.builder_.get())


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc]  # TVM publishes no types
    def enter(self, function: Any) -> None:
        """Learn each variable's value and number of uses: only within `function`."""
        self.values: dict[Any, Any] = dict(relax.analysis.get_var2val(function).items())
        self.uses: Counter[Any] = Counter()
        for value in (*self.values.values(), function.body.body):
            relax.analysis.post_order_visit(value, lambda part: self.uses.update([part]))

    def visit_tuple_getitem_(self, op: Any) -> Any:
        """`normalised[0]` is where a normalisation's output is taken."""
        folded = self._folded(self._value(getattr(op, "tuple_value", None))) if op.index == 0 else None
        return super().visit_tuple_getitem_(op) if folded is None else folded

    def _folded(self, normalisation: Any) -> Any:
        if not _is(normalisation, _NORMALISATION) or not all(map(is_constant, normalisation.args[1:5])):
            return None
        attributes = normalisation.attrs
        summed, bias = normalisation.args[0], None
        if _is(self._value(summed), _ADD) and self.uses[summed] == 1:
            summed, bias = self._value(summed).args[0], self._array(self._value(summed).args[1])
            if bias is None:
                return None
        convolution = self._value(summed)
        if not _is(convolution, _CONVOLUTION) or self.uses[summed] != 1 or not is_constant(convolution.args[1]):
            return None
        layout = convolution.attrs.out_layout or convolution.attrs.data_layout
        if str(layout).find("C") != int(attributes.axis) or len(str(layout)) != len(convolution.ty.shape.values):
            return None
        factor, shift, mean, variance = (each.value.numpy().astype(np.float64) for each in normalisation.args[1:5])
        scale = (factor if attributes.scale else 1.0) / np.sqrt(variance + float(attributes.epsilon))
        offset = (shift if attributes.center else 0.0) - mean * scale
        channels = [-1 if axis == int(attributes.axis) else 1 for axis in range(len(str(layout)))]
        scale, offset = np.asarray(scale), offset.reshape(channels)
        if bias is not None:
            offset = offset + bias * scale.reshape(channels)
        weights, kernel = convolution.args[1].value.numpy(), str(convolution.attrs.kernel_layout)
        per_output = [-1 if axis == "O" else 1 for axis in kernel]
        scaled = (weights * scale.reshape(per_output)).astype(weights.dtype)
        new = relax.Call(convolution.op, [self.visit_expr(convolution.args[0]), relax.const(scaled)], convolution.attrs)
        return relax.op.add(self.builder_.emit(new), relax.const(offset.astype(weights.dtype)))

    def _value(self, variable: Any) -> Any:
        return self.values.get(variable)

    def _array(self, value: Any) -> Array | None:
        """A constant, or a constant in another shape."""
        held = self._value(value)
        if is_constant(value):
            return np.asarray(value.value.numpy(), np.float64)
        if _is(held, _RESHAPE) and is_constant(held.args[0]):
            shape = [int(size) for size in held.ty.shape.values]
            return np.asarray(held.args[0].value.numpy(), np.float64).reshape(shape)
        return None


def _is(value: Any, operator: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and value.op == operator


def is_constant(value: Any) -> bool:
    """Whether an argument is a constant of the model."""
    return isinstance(value, tvm.ir.GenericConst)


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
        if not all(bound is None or is_constant(bound) for bound in bounds):
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


def dimensions(kind: Any) -> tuple[int | str, ...]:
    """A Relax tensor type's shape; symbolic sizes as TVM writes them, unknown ones as "?"."""
    if kind.shape is None:
        return ("?",) * max(0, int(kind.ndim))
    return tuple(int(size) if isinstance(size, tvm.tirx.IntImm) else str(size) for size in kind.shape.values)


def parameters(function: Any) -> tuple[TensorSpec, ...]:
    """A Relax function's parameters, all of them tensors with a shape."""
    return tuple(
        TensorSpec(each.name, dimensions(each.ty), numpy_dtype(str(each.ty.dtype))) for each in function.params
    )


def sizes_by_name(
    model: str, inputs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, str]]:
    """The size of every open dimension, and an input that has it.

    Raises:
        ModelError: one name stands for two sizes.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for spec in inputs:
        for dimension, (wanted, size) in enumerate(zip(spec.shape, shapes[spec.name], strict=True)):
            if isinstance(wanted, int):
                continue
            first, where = sizes.setdefault(wanted, (size, spec.name))
            if first != size:
                raise shape_error(
                    f"{model}: dimension {dimension} ({wanted!r}) of input {spec.name!r} is {size}, and {first} "
                    f"in {where!r}",
                    hint="it is one dimension of the model: give the same size everywhere",
                )
    return sizes


def bound(module: IRModule, sizes: Mapping[str, tuple[int, str]]) -> IRModule:
    """The module with these sizes for names in `main`; names that it does not have are left out."""
    names = {str(each) for each in relax.analysis.defined_symbolic_vars(module["main"])}
    wanted = {name: size for name, (size, _) in sizes.items() if name in names}
    return relax.transform.BindSymbolicVars(wanted, "main")(module) if wanted else module


FLOAT32: Final = "float32"
# relax.transform.ToMixedPrecision: the type in which convolutions and matrix products give their sums.
_SUMS: Final[Mapping[str, str]] = {"float16": "float16", "float16_acc32": "float32"}
PRECISIONS: Final = (FLOAT32, *_SUMS)


def in_precision(module: Any, precision: str) -> Any:
    """The Relax module computing in that precision; its signature stays.

    Raises:
        UserError: there is no such precision.
    """
    if precision == FLOAT32:
        return module
    if precision not in _SUMS:
        raise UserError(
            f"there is no precision {precision!r}", Code.BAD_PRECISION, hint=f"one of {', '.join(PRECISIONS)}"
        )
    return relax.transform.ToMixedPrecision(out_dtype=_SUMS[precision])(module)
