"""Lowering of kernels with textures: TVM's passes for Adreno, with what they lack put around them.

TVM has a list of passes for textures that `tvm.compile` cannot choose: its factory returns one pass where the
finalizing passes of host and device are expected, too. And it makes of each store into a texture a call of the type of
the image's pointer, which `VectorizeLoop` splits into one store per channel: each overwrites the pixel, and the last
one stays. Here stores get a number's type before, and kernels are checked before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import pipeline as s_tir_pipeline
from tvm.s_tir.backend.adreno import transform as adreno
from tvm.tirx import compilation_pipeline

from farm.compiler.texture.scopes import LANES

PIPELINE = "farm-texture"
_STORE, _LOAD = (tvm.ir.Op.get(f"tirx.texture2d_{name}") for name in ("store", "load"))
# Their arguments: the image, the coordinates of the pixel, its bits, and the value or the first channel.
_COORDINATES, _BITS, _LAST = slice(1, 4), 4, 5
_LOCAL_MEMORY_LIMIT = "max_shared_memory_per_block"


class UnsafeKernelError(Exception):
    """A kernel that would compute wrong numbers, or that the device cannot run."""


def register() -> str:
    """Give TVM the pipeline, and its name to the caller."""
    compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline)
    return PIPELINE


def _pipeline() -> tuple[Any, Any, Any]:
    of_adreno = compilation_pipeline.PIPELINE_MAP["adreno"]()
    lowered = tvm.transform.Sequential(
        [_in_threads, adreno.TextureFlatten(), _with_typed_stores, of_adreno, _whole_pixels, _in_local_memory]
    )
    return lowered, s_tir_pipeline.finalize_host_passes, s_tir_pipeline.finalize_device_passes


def _pass(name: str) -> Callable[[Callable[..., Any]], Any]:
    decorated: Callable[[Callable[..., Any]], Any] = tirx.transform.prim_func_pass(opt_level=0, name=f"farm.{name}")
    return decorated


@_pass("TypedStores")
def _with_typed_stores(function: Any, _module: Any, _context: Any) -> Any:
    """`texture2d_store` as a call that gives a number: `VectorizeLoop` makes one call with four lanes of it."""

    def typed(statement: Any) -> Any:
        call = statement.value
        if not isinstance(call, tvm.ir.Call) or call.op != _STORE or isinstance(call.ty, tvm.ir.PrimType):
            return statement
        return tirx.Evaluate(tvm.ir.Call(call.op, list(call.args), ret_ty="int32"))

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.Evaluate, typed), order="post"))


@_pass("InThreads")
def _in_threads(function: Any, _module: Any, _context: Any) -> Any:
    """Refuse an access outside of threads: it would run on the host, which has a handle and not the tensor."""
    if _thread_loops(function.body) and _accessed(function.body) - _accessed_in_threads(function.body):
        raise UnsafeKernelError(f"{_name(function)}: a block has no threads")
    return function


@_pass("WholePixels")
def _whole_pixels(function: Any, _module: Any, _context: Any) -> Any:
    """Refuse what would compute wrong numbers: a store of fewer channels than the pixel has, or of no floats."""
    for store in _calls(function.body, _STORE):
        _check_pixel(function, store, store.args[_LAST].ty.dtype, (LANES,))
    for load in _calls(function.body, _LOAD):
        _check_pixel(function, load, load.ty.dtype, (1, LANES))
        if load.ty.dtype.lanes == LANES and not _from_first(load.args[_LAST]):
            raise UnsafeKernelError(f"{_name(function)}: a vector of channels that are no pixel")
    return function


def _check_pixel(function: Any, call: Any, value: Any, lanes: tuple[int, ...]) -> None:
    bits = int(call.args[_BITS])
    if value.lanes not in lanes or value.bits * LANES != bits or not str(value).startswith("float"):
        raise UnsafeKernelError(f"{_name(function)}: {value} is no pixel of {bits} bits")
    if any(each.ty.dtype.lanes != 1 for each in call.args[_COORDINATES]):
        raise UnsafeKernelError(f"{_name(function)}: one access of several pixels")


def _from_first(channel: Any) -> bool:
    return isinstance(channel, tirx.Ramp) and int(channel.base) == 0 and int(channel.stride) == 1


@_pass("InLocalMemory")
def _in_local_memory(function: Any, _module: Any, _context: Any) -> Any:
    """Refuse a kernel that needs more local memory than the target's GPU has: it would fail when it is started."""
    target = function.attrs.get("target")
    most = target.attrs.get(_LOCAL_MEMORY_LIMIT) if target is not None else None
    needed = _local_bytes(function.body)
    if needed and target is not None and target.kind.name == "llvm":
        raise UnsafeKernelError(f"{_name(function)}: local memory that no thread allocates")
    if most is not None and needed > int(most):
        raise UnsafeKernelError(
            f"{_name(function)} needs {needed:,} bytes of local memory, and the target's GPU has {int(most):,}"
        )
    return function


def _local_bytes(body: Any) -> int:
    """The local memory that a kernel allocates, bytes."""
    sizes = [0]

    def allocated(statement: Any) -> None:
        buffer = statement.buffer
        if buffer.scope().startswith("shared"):
            count = 1
            for size in buffer.shape:
                count *= int(size)
            sizes.append(count * buffer.dtype.itemsize)

    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, allocated), order="post")
    return sum(sizes)


def _calls(body: Any, operator: Any) -> list[Any]:
    """The calls of an operator in a body."""
    found: list[Any] = []

    def visit(call: Any) -> None:
        if call.op == operator:
            found.append(call)

    tvm_ffi.structural_walk(body, (tvm.ir.Call, visit), order="post")
    return found


def _accessed(body: Any) -> set[int]:
    """Where a body reads or writes tensors: the statements' and expressions' addresses."""
    found: set[int] = set()

    def note(node: Any) -> None:
        found.add(node.__chandle__())

    tvm_ffi.structural_walk(body, [(tirx.BufferStore, note), (tvm.ir.TensorLoad, note)], order="post")
    return found


def _accessed_in_threads(body: Any) -> set[int]:
    """The same, of the loops that are bound to threads."""
    return set().union(*(_accessed(loop.body) for loop in _thread_loops(body)))


def _thread_loops(body: Any) -> list[Any]:
    loops: list[Any] = []

    def visit(loop: Any) -> None:
        if loop.thread_binding is not None:
            loops.append(loop)

    tvm_ffi.structural_walk(body, (tirx.For, visit), order="post")
    return loops


def _name(function: Any) -> str:
    return str(function.attrs.get("global_symbol", "a kernel"))
