"""Schedules of kernels with textures: one thread makes one pixel, keeps its sums in registers, and stores it whole.

They take functions as `FuseOps` makes them: blocks over spatial loops, sums among them, and one result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import dlight

from farm.compiler.texture.lowering import UnsafeKernelError
from farm.compiler.texture.scopes import LANES

MAX_THREADS, FEW_THREADS = 256, 16  # of a block
PACKED_CONVOLUTION = "packed_conv2d"  # sums over chunks of input channels, rows, columns and a pixel's channels
GROUPED_CONVOLUTION = "grouped_conv2d"  # its channels read pixels of several groups
_LOCAL = "local"
_KINDS = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)  # spatial loops, sums

Schedule = Callable[[Any, Any], Any]
"""A function and its target to the scheduled function; raises whatever TVM or this module says against it."""


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
