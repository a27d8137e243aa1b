"""Kernels with textures, as OpenCL C: what is generated, and what is refused. Nothing runs here."""

import re

import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.script import from_source

from farm.compiler.texture.layout import one_pixel_a_thread, pixels_last
from farm.compiler.texture.lowering import PIPELINE, register
from farm.compiler.texture.network import checked_kernel, with_scopes
from farm.compiler.texture.scopes import BUFFER, TEXTURES
from tests.support.compiling import ADRENO
from tests.support.opencl import opencl_source

WEIGHT, NHWC, PLAIN = TEXTURES
SHAPE = (1, 2, 6, 7, 4)


def target():
    return tvm.target.Target(
        tvm.target.Target(ADRENO["tag"]), host=tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    )


def elementwise(compute, *, dtype="float32", scopes=(NHWC, NHWC)):
    """A function of one tensor, whose places are given."""
    x = te.placeholder(SHAPE, dtype, name="x")
    return with_scopes(te.create_prim_func([x, te.compute(SHAPE, lambda *at: compute(x, *at), name="y")]), scopes)


def source_of(function):
    executable = checked_kernel(function, target())
    return opencl_source(executable)


def test_the_pipeline_has_a_name_of_its_own():
    assert register() == PIPELINE
    assert len(tvm.tirx.get_tir_pipeline(PIPELINE)) == 3


@pytest.mark.parametrize("vectorized", [True, False])
@pytest.mark.parametrize("scope", TEXTURES)
def test_a_pixel_is_read_once_and_written_whole(scope, vectorized):
    function = elementwise(lambda x, *at: x[at] * 2.0, scopes=(scope, scope))
    source = source_of(one_pixel_a_thread(function, vectorized=vectorized))
    assert source.count("write_imagef(") == 1
    assert source.count("READ_IMAGEF(x_ptr") == 1


def test_the_same_number_in_each_channel_is_one_store():
    """TVM's own pipeline takes such a store apart: the last of four channels remains."""
    source = source_of(one_pixel_a_thread(elementwise(lambda _x, *_at: tirx.const(1.5, "float32")), vectorized=False))
    assert source.count("write_imagef(") == 1


@pytest.mark.parametrize(("dtype", "read"), [("float32", "READ_IMAGEF"), ("float16", "READ_IMAGEH")])
def test_half_precision_has_pixels_of_its_own(dtype, read):
    function = elementwise(lambda x, *at: x[at] + tirx.const(1, dtype), dtype=dtype)
    assert f"{read}(" in source_of(one_pixel_a_thread(function, vectorized=True))


SUM_BEFORE_SPATIAL = """
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(x: T.Buffer((3, 8, 4), "float32"), y: T.Buffer((8, 4), "float32")):
    for k, row, lane in T.grid(3, 8, 4):
        with T.sblock("y"):
            v_k, v_row, v_lane = T.axis.remap("RSS", [k, row, lane])
            with T.init():
                y[v_row, v_lane] = T.float32(0)
            y[v_row, v_lane] = y[v_row, v_lane] + x[v_k, v_row, v_lane]
"""


def test_a_sum_may_come_before_the_loops_over_the_result():
    function = with_scopes(from_source(SUM_BEFORE_SPATIAL), (BUFFER, WEIGHT))
    assert source_of(one_pixel_a_thread(function, vectorized=False)).count("write_imagef(") == 1


def by_channels(function):
    """Each channel by a thread of its own, as TVM's default schedule has it."""
    schedule = s_tir.Schedule(function)
    fused = schedule.fuse(*schedule.get_loops(schedule.get_sblock("y")))
    blocks, threads = schedule.split(fused, [None, 4])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    return schedule.mod["main"]


def test_a_store_of_one_channel_is_refused():
    function = elementwise(lambda x, *at: x[at] * 2.0)
    with pytest.raises(Exception, match="float32 is no pixel of 128 bits"):
        checked_kernel(by_channels(function), target())
    assert "write_image" not in source_of(by_channels(elementwise(lambda x, *at: x[at] * 2.0, scopes=(NHWC, BUFFER))))


def test_whole_numbers_are_refused_in_textures():
    function = elementwise(lambda x, *at: x[at] + 1, dtype="int32")
    with pytest.raises(Exception, match=r"int32(x4)? is no pixel"):
        checked_kernel(one_pixel_a_thread(function, vectorized=True), target())


def test_a_block_without_threads_is_refused():
    x = te.placeholder(SHAPE, name="x")
    y = te.compute(SHAPE, lambda *at: x[at] * 2.0, name="y")
    z = te.compute(SHAPE, lambda *at: y[at] + x[at], name="z")
    schedule = s_tir.Schedule(with_scopes(te.create_prim_func([x, y, z]), (NHWC, NHWC, NHWC)))
    *spatial, channel = schedule.get_loops(schedule.get_sblock("z"))
    schedule.bind(schedule.fuse(*spatial), "threadIdx.x")
    schedule.vectorize(channel)
    with pytest.raises(Exception, match="a block has no threads"):
        checked_kernel(schedule.mod["main"], target())


def test_a_kernel_that_needs_more_local_memory_than_the_gpu_has_is_refused_with_both_numbers():
    x = te.placeholder((64, 128), name="x")
    y = te.compute((64, 128), lambda i, j: x[i, j] * 2.0, name="y")
    schedule = s_tir.Schedule(te.create_prim_func([x, y]))
    block = schedule.get_sblock("y")
    shared = schedule.cache_read(block, 0, "shared")
    rows, _ = schedule.get_loops(block)
    outer = schedule.add_unit_loop(rows)
    schedule.bind(outer, "blockIdx.x")
    schedule.compute_at(shared, outer)
    schedule.bind(rows, "threadIdx.x")
    schedule.bind(schedule.get_loops(shared)[1], "threadIdx.x")
    with pytest.raises(
        Exception, match=re.escape("needs 32,768 bytes of local memory, and the target's GPU has 16,384")
    ):
        checked_kernel(schedule.mod["main"], target())


def test_weights_are_split_into_pixels_without_a_compiler():
    import numpy as np

    values = np.arange(8 * 3 * 2).reshape(8, 3, 2, 1)
    split = pixels_last(values, [2, 3, 2, 1, 4])
    assert split.shape == (2, 3, 2, 1, 4)
    assert all(
        split[o // 4, i, y, 0, o % 4] == values[o, i, y, 0] for o in range(8) for i in range(3) for y in range(2)
    )
    assert pixels_last(values, [8, 3, 2, 1]) is None
    assert pixels_last(values, [8, 3, 2, 1, 4]) is None
