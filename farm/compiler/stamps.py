"""A model that notes the time after each call of an operator, in an array that is its last output.

A stamp is a call of `clock_gettime` on the phone, 50 ns; nothing is sent while the model runs. A GPU works on while its
host goes to the next call: there each stamp first waits for the GPU, by fetching one number from it, and a wait for
nothing right after the start shows what that costs.

Notes lie in an array of 64-bit integers: how many there are, a word that nothing uses, then seconds and nanoseconds of
each, the start first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.script import tirx as T  # noqa: N812 - its customary name

_BEGIN, _STAMP = "farm_begin", "farm_stamp"
_BUILTIN = "vm.builtin."  # functions of the VM itself
_HEAP, _FETCH = "vm.builtin.alloc_shape_heap", "vm.builtin.to_device"
_CPU = 1  # DLDeviceType of DLPack
_MONOTONIC = 1  # CLOCK_MONOTONIC of Linux
_S = 1_000_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class StampedCall:
    """One call of an operator in `main`."""

    name: str
    shapes: tuple[str, ...]  # of its tensors, inputs first
    external: bool  # a function of another library, which TVM hands the operator to


def nanoseconds(timeline: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The times in an array that a run has filled, by the phone's clock; the first is the start's."""
    pairs = timeline[2:].reshape(-1, 2)
    stamps: npt.NDArray[np.int64] = pairs[:, 0] * _S + pairs[:, 1]
    return stamps


def stamped(module: Any, *, waits: bool) -> tuple[Any, list[StampedCall]]:
    """A module whose memory is planned, with a stamp behind each call of an operator; and these calls, in order.

    `main` gives its own outputs and the notes. With `waits` each stamp waits for the VM's device, and there is one
    more: the first is of a wait for nothing.
    """
    main = module["main"]
    calls = [_described(each.value) for block in main.body.blocks for each in block.bindings if _is_operator(each)]
    size = 2 * (len(calls) + waits + 2)
    builder = relax.BlockBuilder(module)
    begin, stamp = (
        builder.add_func(each, name) for each, name in zip(_stamps(size), (_BEGIN, _STAMP), strict=True)
    )  # fmt: skip
    timeline = relax.Var("timeline", relax.TensorType((size,), "int64"))
    first = [relax.VarBinding(timeline, _on_host(timeline.ty, size))]
    number = relax.Var("number", relax.TensorType((1,), "float32"))

    def noted(function: Any) -> list[Any]:
        """A variable is bound once, so each place has bindings of its own."""
        return [*([_fetched(number)] if waits else []), _bound(relax.Call(function, [timeline]), relax.TupleType([]))]

    if waits:
        first += _on_device(number)
    blocks = [relax.BindingBlock([*first, *noted(begin), *(noted(stamp) if waits else [])])]
    for block in main.body.blocks:
        bindings = [each for one in block.bindings for each in ((one, *noted(stamp)) if _is_operator(one) else (one,))]
        blocks.append(relax.BindingBlock(bindings))
    both = relax.Tuple([main.body.body, timeline])
    outputs = relax.Var("outputs", relax.TupleType([main.ret_ty, timeline.ty]))
    blocks.append(relax.BindingBlock([relax.VarBinding(outputs, both)]))
    changed = relax.Function(main.params, relax.SeqExpr(blocks, outputs), outputs.ty, main.is_pure)
    made = builder.get()
    made["main"] = changed.with_attrs(main.attrs)
    return made, calls


def _on_host(kind: Any, size: int) -> Any:
    """An array of 64-bit integers in the memory of the VM's host, whatever its device is."""
    return relax.op.call_builtin_with_ctx(_HEAP, relax.Tuple([relax.prim_value(size)]), ty_args=kind)


def _on_device(number: Any) -> list[Any]:
    """The bindings that make a tensor of one number on the VM's device."""
    storage = relax.Var("storage", relax.ObjectType())
    return [
        relax.VarBinding(storage, relax.op.memory.alloc_storage(relax.ShapeExpr([4]), 0, "global", "float32")),
        relax.VarBinding(number, relax.op.memory.alloc_tensor(storage, 0, relax.ShapeExpr([1]), "float32")),
    ]


def _fetched(number: Any) -> Any:
    """Copies that number to the host: it comes once the device, which keeps the order of its calls, has done them."""
    there = [number, relax.prim_value(_CPU), relax.prim_value(0)]
    return _bound(relax.Call(relax.ExternFunc(_FETCH), there, ty_args=[number.ty]), number.ty)


def _stamps(size: int) -> Iterator[Any]:
    """Functions of the host that note the time: as the first, and as the next."""
    host = {"tirx.is_scheduled": True, "tirx.is_host_func": True}

    @T.prim_func  # type: ignore[untyped-decorator]
    def begin(timeline: T.Buffer((size,), "int64")) -> None:  # type: ignore[valid-type]
        T.func_attr({"global_symbol": "farm_begin"})
        timeline[0] = T.int64(0)
        T.evaluate(T.call_extern("int32", "clock_gettime", _MONOTONIC, T.address_of(timeline[2])))

    @T.prim_func  # type: ignore[untyped-decorator]
    def stamp(timeline: T.Buffer((size,), "int64")) -> None:  # type: ignore[valid-type]
        T.func_attr({"global_symbol": "farm_stamp"})
        timeline[0] = timeline[0] + T.int64(1)
        T.evaluate(
            T.call_extern(
                "int32", "clock_gettime", _MONOTONIC, T.address_of(timeline[T.int64(2) + T.int64(2) * timeline[0]])
            )
        )

    yield from (each.with_attrs(host) for each in (begin, stamp))


def _is_operator(binding: Any) -> bool:
    called = getattr(binding.value, "op", None)
    if isinstance(called, relax.ExternFunc):
        return not str(called.global_symbol).startswith(_BUILTIN)
    return isinstance(called, tvm.ir.GlobalVar)


def _described(call: Any) -> StampedCall:
    external = isinstance(call.op, relax.ExternFunc)
    name = call.op.global_symbol if external else call.op.name_hint
    return StampedCall(str(name), tuple(_shapes(call.args)), external)


def _shapes(arguments: Sequence[Any]) -> Iterator[str]:
    for each in arguments:
        sizes = getattr(getattr(each.ty, "shape", None), "values", None)
        if sizes is not None:
            words = (str(int(size)) if isinstance(size, tvm.tirx.IntImm) else "?" for size in sizes)
            yield f"{'x'.join(words) or 'scalar'} {each.ty.dtype}"


def _bound(call: Any, kind: Any) -> Any:
    return relax.VarBinding(relax.Var("_", kind), call)
