"""Relax modules whose convolutions, and what lies between them, have four channels as their last dimension.

`relax.transform.ConvertLayout` carries that layout through a network. Some operators it carries it through wrongly, or
fails on; they are made functions before, which it leaves in their own layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import dlight

from farm.compiler.texture.lowering import UnsafeKernelError
from farm.compiler.texture.scopes import LANES, RANK

_DATA, _WEIGHTS = "NCHW4c", "OIHW4o"
_LAYOUTS = {"relax.nn.conv2d": [_DATA, _WEIGHTS, _DATA]}
_RANK = RANK - 1  # of a tensor with channels before its last dimension is split off
_POOLS = frozenset(f"relax.nn.{name}" for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"))
# What computes each element from those of the same place.
_CARRIED = frozenset(
    f"relax.{name}"
    for name in (
        *("nn.relu", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh", "exp", "log", "sqrt"),
        *("rsqrt", "abs", "negative", "erf", "floor", "ceil", "round", "square", "astype"),
    )
)
_ALIKE = frozenset(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"))
_CONVOLUTION, _CONCATENATION, _TRANSFORM = (
    tvm.ir.Op.get(f"relax.{name}") for name in ("nn.conv2d", "concat", "layout_transform")
)
MAX_THREADS, FEW_THREADS = 256, 16  # of a block
PACKED_CONVOLUTION = "packed_conv2d"  # sums over chunks of input channels, rows, columns and a pixel's channels
GROUPED_CONVOLUTION = "grouped_conv2d"  # its channels read pixels of several groups
_LOCAL = "local"
_KINDS = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)  # spatial loops, sums
Schedule = Callable[[Any, Any], Any]
"""A function and its target to the scheduled function; raises whatever TVM or this module says against it."""


def to_pixel_layout(module: Any) -> Any:
    """The module in that layout where it fits, with its operators legalised and fused into functions to schedule."""
    module = relax.transform.Normalize()(visited(_Protector, module))
    module = relax.transform.Normalize()(relax.transform.ConvertLayout(_LAYOUTS)(module))
    return visited(_Splitter, module)


def legalize_convolution(builder: Any, call: Any) -> Any:
    """Legalise a convolution: farm's own computation for that layout, TVM's for every other."""
    if str(call.attrs.data_layout) != _DATA:
        return call.op.get_attr("FLegalize")(builder, call)
    data, weights = call.args[0].ty.shape.values, call.args[1].ty.shape.values
    grouped = int(data[1]) * LANES != int(weights[1])
    name = GROUPED_CONVOLUTION if grouped else PACKED_CONVOLUTION
    compute = _grouped if grouped else _packed

    def convolved(data: Any, weights: Any) -> Any:
        return compute(data, weights, call.attrs, str(call.attrs.out_dtype or call.args[0].ty.dtype))

    return builder.call_te(convolved, call.args[0], call.args[1], ty_args=call.ty_args, primfunc_name_hint=name)


def legalize_layout_transform(builder: Any, call: Any) -> Any:
    """Legalise a change of layout: into pixels by a loop over pixels, as textures are written; others as TVM does."""
    given, wanted = fixed_shape(call.args[0].ty), fixed_shape(call.ty)
    axis = split_axis(given, wanted)
    if axis is None:
        return call.op.get_attr("FLegalize")(builder, call)

    def split(tensor: Any) -> Any:
        def element(*at: Any) -> Any:
            *chunks, lane = at
            chunks[axis] = chunks[axis] * LANES + lane
            return tensor[tuple(chunks)]

        return te.compute(wanted, element, name="in_pixels")

    return builder.call_te(split, call.args[0], ty_args=call.ty_args, primfunc_name_hint="in_pixels")


LEGALIZED = {"relax.nn.conv2d": legalize_convolution, "relax.layout_transform": legalize_layout_transform}


def _packed(data: Any, weights: Any, attributes: Any, dtype: str) -> Any:
    """A convolution of one group: a pixel of four input channels meets four rows of the weights."""
    (stride_y, stride_x), (apart_y, apart_x), padded, shape = _geometry(data, weights, attributes)
    chunk = te.reduce_axis((0, int(data.shape[1])), "chunk")
    row, column = _taps(weights)
    channel = te.reduce_axis((0, LANES), "channel")

    def element(n: Any, o: Any, y: Any, x: Any, lane: Any) -> Any:
        pixel = padded[n, chunk, y * stride_y + row * apart_y, x * stride_x + column * apart_x, channel]
        weight = weights[o, chunk * LANES + channel, row, column, lane]
        return te.sum(pixel.astype(dtype) * weight.astype(dtype), axis=[chunk, row, column, channel])

    return te.compute(shape, element, name=PACKED_CONVOLUTION)


def _grouped(data: Any, weights: Any, attributes: Any, dtype: str) -> Any:
    """A convolution of several groups. With one channel in and out of each (depthwise), lanes stay lanes."""
    (stride_y, stride_x), (apart_y, apart_x), padded, shape = _geometry(data, weights, attributes)
    inner, filters = int(weights.shape[1]), shape[1] * LANES
    per_group = filters // (int(data.shape[1]) * LANES // inner)
    depthwise = inner == per_group == 1
    ic = te.reduce_axis((0, inner), "ic")
    row, column = _taps(weights)

    def element(n: Any, o: Any, y: Any, x: Any, lane: Any) -> Any:
        at = y * stride_y + row * apart_y, x * stride_x + column * apart_x
        if depthwise:
            pixel = padded[(n, o, *at, lane)]
            return te.sum(pixel.astype(dtype) * weights[o, 0, row, column, lane].astype(dtype), axis=[row, column])
        channel = tirx.floordiv(o * LANES + lane, per_group) * inner + ic
        pixel = padded[(n, tirx.floordiv(channel, LANES), *at, tirx.floormod(channel, LANES))]
        return te.sum(pixel.astype(dtype) * weights[o, ic, row, column, lane].astype(dtype), axis=[ic, row, column])

    return te.compute(shape, element, name="depthwise_conv2d" if depthwise else GROUPED_CONVOLUTION)


def _taps(weights: Any) -> tuple[Any, Any]:
    """The sums over a kernel's rows and columns."""
    rows, columns = (int(size) for size in weights.shape[2:4])
    return te.reduce_axis((0, rows), "row"), te.reduce_axis((0, columns), "column")


def _geometry(
    data: Any, weights: Any, attributes: Any
) -> tuple[tuple[int, ...], tuple[int, ...], Any, tuple[int, ...]]:
    """Strides and dilations, the padded input, and the shape of the result."""
    strides, dilation = (tuple(map(int, each)) for each in (attributes.strides, attributes.dilation))
    top, left, bottom, right = map(int, attributes.padding)
    n, _, *sizes, _ = map(int, data.shape)
    kernel = map(int, weights.shape[2:4])
    sides = ((top, bottom), (left, right))
    out = [
        (size + sum(pads) - (taps - 1) * apart - 1) // stride + 1
        for size, pads, taps, apart, stride in zip(sizes, sides, kernel, dilation, strides, strict=True)
    ]
    padded = topi.nn.pad(data, (0, 0, top, left, 0), (0, 0, bottom, right, 0)) if any(map(sum, sides)) else data
    return strides, dilation, padded, (n, int(weights.shape[0]), *out, LANES)


def visited(visitor: Any, module: Any) -> Any:
    """The module with every Relax function as that mutator makes it."""
    work = visitor(module)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            work.builder_.update_func(variable, work.visit_expr(function))
    return work.builder_.get()


@mutator
class _Protector(PyExprMutator):  # type: ignore[misc]  # TVM publishes no types
    """Legalises what ConvertLayout must not touch."""

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if not isinstance(call.op, tvm.ir.Op) or _may_carry(call):
            return call
        legalize = call.op.get_attr("FLegalize")
        return call if legalize is None else legalize(self.builder_, call)


def _may_carry(call: Any) -> bool:
    name = str(call.op.name)
    if call.op == _CONVOLUTION or name in _POOLS:  # of another layout, dimension 1 is not the channels
        return str(getattr(call.attrs, "data_layout", "") or call.attrs.layout) == "NCHW"
    if name in _CARRIED:
        return True
    if name in _ALIKE:
        return _same_channels([fixed_shape(each.ty) for each in call.args])
    if call.op == _CONCATENATION:
        kind = call.args[0].ty
        shapes = [fixed_shape(each) for each in kind.fields] if isinstance(kind, tvm.ir.TupleType) else []
        return bool(shapes) and all(shape is not None and len(shape) == _RANK and _whole(shape) for shape in shapes)
    return False


def _same_channels(shapes: list[Any]) -> bool:
    """Whether tensors have the same channels, or are scalars, so that a pixel of one is a pixel of all."""
    if any(shape is None or len(shape) not in (0, _RANK) for shape in shapes):
        return False
    return len({shape[1] for shape in shapes if shape}) <= 1


def _whole(shape: list[int]) -> bool:
    return shape[1] % LANES == 0


def fixed_shape(kind: Any) -> list[int] | None:
    """The sizes of a tensor's type; None: they are not known, or it is none."""
    sizes = getattr(getattr(kind, "shape", None), "values", None)
    if sizes is None or not all(isinstance(size, tirx.IntImm) for size in sizes):
        return None
    return [int(size) for size in sizes]


@mutator
class _Splitter(PyExprMutator):  # type: ignore[misc]
    """Splits constants by numpy: TVM compiles a function for each constant that it folds."""

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if call.op != _TRANSFORM or not isinstance(call.args[0], tvm.ir.GenericConst):
            return call
        given, wanted = (fixed_shape(each.ty) for each in (call.args[0], call))
        if given is None:
            return call
        split = pixels_last(call.args[0].value.numpy(), wanted)
        return call if split is None else relax.const(split)


def pixels_last(values: Any, shape: list[int] | None) -> Any | None:
    """An array with one dimension split into chunks of four, the four last; None: that is not what `shape` is."""
    axis = split_axis(list(values.shape), shape)
    if axis is None or shape is None:
        return None
    apart = values.reshape(*values.shape[:axis], shape[axis], LANES, *values.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(apart, axis + 1, -1))


def split_axis(given: list[int] | None, wanted: list[int] | None) -> int | None:
    """Which dimension has become chunks of four, the four last; None: that is not what was done."""
    if given is None or wanted is None or len(wanted) != len(given) + 1 or wanted[-1] != LANES:
        return None
    split = [axis for axis, (size, chunks) in enumerate(zip(given, wanted, strict=False)) if size != chunks]
    return split[0] if len(split) == 1 and given[split[0]] == wanted[split[0]] * LANES else None


def schedules() -> Iterator[Schedule]:
    """What may be tried for a function that reads or writes textures, the fastest first."""
    yield lambda function, _: one_pixel_a_thread(function, vectorized=True)
    yield lambda function, _: one_pixel_a_thread(function, vectorized=False)
    for rule in (dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(), dlight.gpu.Fallback()):
        yield partial(_by_rule, rule)


def _by_rule(rule: Any, function: Any, target: Any) -> Any:
    made = rule.apply(function, target, False)
    if made is None:
        raise UnsafeKernelError(f"{type(rule).__name__} does not apply")
    return (made[0] if isinstance(made, list) else made).mod["main"]


def one_pixel_a_thread(function: Any, *, vectorized: bool) -> Any:
    """The function with its result's pixels, or elements, given to threads.

    Args:
        function: not scheduled yet.
        vectorized: compute the channels of a pixel as a vector, else one after the other before they are stored.

    Raises:
        UnsafeKernelError: it has another form.
        ScheduleError: TVM finds the schedule to be wrong.
    """
    schedule = s_tir.Schedule(function)
    pixels = _input_pixels(schedule)
    sums, last = _remaining(schedule, {schedule.get(each).name_hint for each in pixels.values()})
    if _is_sum(schedule, last):
        sums.append(last)
        last = schedule.cache_write(last, 0, _LOCAL)
    vectorized = vectorized and not any(_block_name(schedule, each) == GROUPED_CONVOLUTION for each in sums)
    thread, channel = _threads(schedule, last, exact=bool(sums))
    for block in reversed(sums):
        _sum_in_thread(schedule, block, thread, pixels.get(_block_name(schedule, block)), vectorized=vectorized)
    if channel is not None:
        _stored_whole(schedule, last, thread, channel, vectorized=vectorized or bool(_is_copy(schedule, last)))
    return schedule.mod["main"]


def _blocks(schedule: Any) -> list[Any]:
    root = dlight.analysis.get_root_block(schedule, "main")
    return list(schedule.get_child_blocks(root))


def _block_name(schedule: Any, block: Any) -> str:
    return str(schedule.get(block).name_hint)


def _loops(schedule: Any, block: Any, outer: int = 0) -> tuple[list[Any], list[Any]]:
    """A block's spatial loops below the `outer` first ones, and those of its sums."""
    loops, variables = schedule.get_loops(block)[outer:], schedule.get(block).iter_vars
    if len(loops) != len(variables):
        raise UnsafeKernelError("a block whose loops are not its variables")
    kinds = [each.iter_type for each in variables]
    of_kind = {kind: [loop for loop, its in zip(loops, kinds, strict=True) if its == kind] for kind in _KINDS}
    if not set(kinds) <= of_kind.keys():
        raise UnsafeKernelError("a block that is neither spatial nor a sum")
    spatial, sums = of_kind.values()
    return spatial, sums


def _is_sum(schedule: Any, block: Any) -> bool:
    return any(each.iter_type == tirx.IterVar.CommReduce for each in schedule.get(block).iter_vars)


def _input_pixels(schedule: Any) -> dict[str, Any]:
    """A block before each packed convolution that copies one pixel of its input into registers, by its name."""
    named = {_block_name(schedule, block): block for block in _blocks(schedule)}
    return {name: schedule.cache_read(block, 0, _LOCAL) for name, block in named.items() if name == PACKED_CONVOLUTION}


def _remaining(schedule: Any, kept: set[str]) -> tuple[list[Any], Any]:
    """The sums that remain when all else is computed where it is used, in order, and the block of the result."""
    inlined = True
    while inlined:
        inlined = False
        for block in _blocks(schedule)[:-1]:
            if _block_name(schedule, block) not in kept and not _is_sum(schedule, block):
                schedule.compute_inline(block)
                inlined = True
                break
    blocks = [block for block in _blocks(schedule) if _block_name(schedule, block) not in kept]
    return blocks[:-1], blocks[-1]


def _extent(schedule: Any, loop: Any) -> int:
    return int(schedule.get(loop).extent)


def _threads(schedule: Any, block: Any, *, exact: bool) -> tuple[Any, Any | None]:
    """Bind a block's loops; returns the loop of one thread, and the loop over a pixel's channels where it has one.

    Exactly, where sums are computed in the threads: a split with a remainder has a condition, which they do not have.
    """
    spatial, _ = _loops(schedule, block)
    channel = spatial.pop() if _writes_pixels(schedule, block) else None
    fused = schedule.fuse(*spatial) if spatial else schedule.add_unit_loop(block)
    total = _extent(schedule, fused)
    threads = next(each for each in range(min(MAX_THREADS, total), 0, -1) if total % each == 0)
    if not exact and threads < FEW_THREADS < total:
        threads = MAX_THREADS
    outer, inner = schedule.split(fused, [None, threads])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
    return inner, channel


def _writes_pixels(schedule: Any, block: Any) -> bool:
    """Whether the last dimension of what a block writes is a pixel's channels, with a loop of their own."""
    statement = schedule.get(block)
    shape, index = statement.writes[0].source.shape, statement.writes[0].region[-1].min
    last = [each for each in statement.iter_vars if each.iter_type == tirx.IterVar.DataPar][-1]
    return len(shape) > 1 and int(shape[-1]) == LANES and last.var.same_as(index)


def _sum_in_thread(schedule: Any, block: Any, thread: Any, pixel: Any | None, *, vectorized: bool) -> None:
    """Compute a sum in the thread that uses it."""
    schedule.compute_at(block, thread, preserve_unit_loops=True)
    schedule.set_scope(block, 0, _LOCAL)
    spatial, sums = _loops(schedule, block, outer=2)
    channel = spatial[-1] if spatial and _extent(schedule, spatial[-1]) == LANES else None
    if vectorized and channel is not None:
        schedule.reorder(*sums, channel)
    if pixel is not None:
        *_, column, input_channel = sums
        schedule.compute_at(pixel, column, preserve_unit_loops=True)
        schedule.vectorize(schedule.get_loops(pixel)[-1])
        schedule.unroll(input_channel)
    vectorized = vectorized and channel is not None
    if vectorized:  # before the split: what is left of a sum without its start is none to TVM
        schedule.vectorize(channel)
    start = schedule.decompose_reduction(block, sums[0])
    if vectorized:
        schedule.vectorize(schedule.get_loops(start)[-1])


def _is_copy(schedule: Any, block: Any) -> bool:
    return _block_name(schedule, block).endswith(f"_{_LOCAL}")


def _stored_whole(schedule: Any, block: Any, thread: Any, channel: Any, *, vectorized: bool) -> None:
    if not vectorized:
        block = schedule.cache_write(block, 0, _LOCAL)
        schedule.reverse_compute_at(block, thread, preserve_unit_loops=True)
        channel = schedule.get_loops(block)[-1]
    schedule.vectorize(channel)
