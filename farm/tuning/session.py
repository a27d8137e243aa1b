"""A reused RPC session that measures one candidate after the other in four round trips each, six for long repeats.

Stock's runner opens a session for each candidate and makes some twenty round trips in it. Here the phone's functions
are looked up once, argument buffers are made once for each signature, and nothing is freed while the session lives: the
session is renewed now and then instead, which frees everything at once. That is also safer: TVM's Python binding frees
remote objects with the interpreter's lock held, so a phone that hangs in a free would stop every thread.
"""

from __future__ import annotations

import contextlib
import math
import re
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import rpc
from tvm.s_tir.meta_schedule.arg_info import TensorInfo
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.compiler.tvm_errors import first_line
from farm.jobs.attempt import SessionOffer

RENEW_CANDIDATES = 256  # a loaded library costs the phone some pages and a file until then
RENEW_BYTES = 64 << 20  # of uploads, which lie in the phone's work folder until the session ends
RENEW_BUFFER_BYTES = 256 << 20  # of argument buffers

# What TVM makes of a refusal, and then the match key; a server may hang up while TVM still sends.
REFUSED = re.compile("cannot find server that matches|Broken pipe|Connection reset")


def connect(offer: SessionOffer) -> Any:
    """A TVM session through the gate. No error has the match key: whoever knows it gets the phone."""
    try:
        return rpc.connect(offer.host, offer.port, key=offer.key)
    except Exception as error:  # noqa: BLE001 - TVM has several for it
        said = first_line(error)
        refused = "the phone's RPC server took no session"
        raise ConnectionError(refused if REFUSED.search(said) else said.replace(offer.key, "...")) from None


ArgsInfo = tuple[tuple[str, str, tuple[int, ...]], ...]  # ("TENSOR", dtype, shape) of each argument


@dataclass(slots=True)
class CandidateSession:
    """An open session to one phone. For one thread. Whatever TVM raises comes through."""

    raw: Any  # tvm.rpc.RPCSession
    starting: bool = False  # whether arguments of the candidate at hand are being made on the phone
    touched: bool = False  # whether code of the candidate at hand may be on the phone
    _functions: dict[str, Any] = field(default_factory=dict)
    _buffers: dict[tuple[str, ArgsInfo], list[Any]] = field(default_factory=dict)
    _remote: list[Any] = field(default_factory=list)  # remote modules and evaluators: see the module's text
    _candidates: int = 0  # loaded; these and the bytes wear the session
    _upload_bytes: int = 0
    _buffer_bytes: int = 0

    @classmethod
    def open(cls, offer: SessionOffer) -> CandidateSession:
        """Connect, and look up the functions of the phone's server that every candidate needs."""
        session = cls(connect(offer))
        for name in ("tvm.rpc.server.upload", "tvm.rpc.server.load_module", "runtime.RPCTimeEvaluator"):
            session.function(name)
        return session

    @property
    def worn(self) -> bool:
        """Whether enough has gathered on the phone to begin again."""
        return (
            self._candidates >= RENEW_CANDIDATES
            or self._upload_bytes >= RENEW_BYTES
            or self._buffer_bytes >= RENEW_BUFFER_BYTES
        )

    def function(self, name: str) -> Any:
        """A global function of the phone's TVM runtime."""
        if name not in self._functions:
            self._functions[name] = self.raw.get_function(name)
        return self._functions[name]

    def ping(self) -> None:
        """One round trip; raises when the phone does not answer."""
        self._remote.append(self.raw.get_function("tvm.rpc.server.upload"))

    def evaluator(
        self, library: bytes, device_type: str, args_info: ArgsInfo, how: EvaluatorConfig, most_s: float
    ) -> Any:
        """Everything up to the first run. Returns the function that measures: by its estimate for at most `most_s`."""
        self.touched = self.starting = False
        self._candidates += 1
        self._upload_bytes += len(library)
        device = self.raw.device(device_type, 0)
        arguments = self._arguments(device_type, device, args_info)
        name = f"candidate-{self._candidates}.so"
        self.function("tvm.rpc.server.upload")(name, bytearray(library))
        self.touched = True  # loading runs the library's initialisers
        module = self.function("tvm.rpc.server.load_module")(name)
        self._remote.append(module)
        local = tvm.runtime.device(device_type, 0)
        flush = "cache_flush_cpu_non_first_arg" if how.enable_cpu_cache_flush else ""

        def timed(number: int, repeat: int, min_repeat_ms: int) -> tuple[float, ...]:
            timer = self.function("runtime.RPCTimeEvaluator")(
                module, "main", int(local.dlpack_device_type()), 0, number, repeat, min_repeat_ms, 100, 0, 1, 0, flush,
            )  # fmt: skip
            self._remote.append(timer)
            return struct.unpack("@" + "d" * repeat, timer(*arguments))

        return lambda: measured(how.number, how.repeat, how.min_repeat_ms, timed, most_s)

    def close(self) -> None:
        """End the session now; the phone's process ends with it, and with that everything it kept."""
        with contextlib.suppress(Exception):  # broken already: ended
            self.raw._sess.get_function("CloseRPCConnection")()  # noqa: SLF001 - the one way to close for certain
        # Only now, when they cannot ask the phone any more.
        self._remote.clear()
        self._buffers.clear()
        self._functions.clear()

    def _arguments(self, device_type: str, device: Any, args_info: ArgsInfo) -> list[Any]:
        """Buffers of that signature, filled with random numbers when they are made."""
        key = (device_type, args_info)
        if key not in self._buffers:
            fill = self.function("tvm.contrib.random.random_fill_for_measure")
            made = []
            self.starting = True
            for _, dtype, shape in args_info:
                self._buffer_bytes += _bytes(dtype, shape)
                buffer = tvm.runtime.empty(shape=shape, dtype=dtype, device=device)
                self._remote.append(buffer)
                fill(buffer)
                made.append(buffer)
            device.sync()
            self.starting = False
            self._buffers[key] = made
        return self._buffers[key]


def bytes_of(args_info: ArgsInfo) -> int:
    """How much memory these arguments take."""
    return sum(_bytes(dtype, shape) for _, dtype, shape in args_info)


def args_info_from(given: Sequence[Any]) -> ArgsInfo:
    """MetaSchedule's ArgInfo objects as plain values."""
    if unknown := [type(each).__name__ for each in given if not isinstance(each, TensorInfo)]:
        raise ValueError(f"arguments of kind {unknown[0]} cannot be made up")
    return tuple(("TENSOR", str(each.dtype), tuple(each.shape)) for each in given)


def _bytes(dtype: str, shape: Sequence[int]) -> int:
    bits = re.search(r"\d+", dtype)
    return math.prod(shape) * (int(bits.group()) if bits else 8) // 8


PROBE_MS = 10  # of runs, from which the number for a repeat is reckoned
MARGIN = 1.05  # more runs than reckoned: to add some later costs two round trips

Timed = Callable[[int, int, int], tuple[float, ...]]


def measured(
    number: int,
    repeat: int,
    min_repeat_ms: int,
    timed: Timed,
    most_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[float, ...]:
    """The mean seconds of one run, for each repeat: `number` runs at least, which last `min_repeat_ms` at least.

    A repeat is one stretch of runs, or two when the number was reckoned too small; the mean is over all of its runs.

    Args:
        number: of runs in a repeat, at least.
        repeat: how many repeats.
        min_repeat_ms: how long the runs of a repeat must last together, by the phone's clock.
        timed: TVM's evaluator: it takes these three, and answers as this function does.
        most_s: repeats that would take longer by `clock` are shorter: the launches of a GPU's kernel may take far
            longer than the kernel, whose time alone a GPU's driver states.
        clock: the host's.
    """
    if min_repeat_ms <= PROBE_MS:
        return timed(number, repeat, min_repeat_ms)
    began_s = clock()
    probe = timed(number, 1, PROBE_MS)
    # A slow kernel's probe is a repeat as it was asked for.
    done = probe if number * probe[0] * 1e3 >= min_repeat_ms else ()
    wanted, least_s = repeat - len(done), least_repeat_ms(min_repeat_ms, repeat, clock() - began_s, most_s) / 1e3
    run_s, runs, spent_s = probe[0], 0, [0.0] * wanted
    while wanted and min(spent_s) < least_s:
        if run_s <= 0:  # the phone's clock is too coarse: TVM knows when to stop
            return timed(number, repeat, min_repeat_ms)
        more = max(number - runs, math.ceil(MARGIN * (least_s - min(spent_s)) / run_s))
        stretch = timed(more, wanted, 0)
        runs += more
        spent_s = [before + more * each for before, each in zip(spent_s, stretch, strict=True)]
        run_s = min(spent_s) / runs
    return (*done, *(each / runs for each in spent_s))


def least_repeat_ms(min_repeat_ms: float, repeat: int, probe_s: float, most_s: float) -> float:
    """How long a repeat lasts by the phone's clock, when the probe took `probe_s` by the host's."""
    reckoned_s = probe_s * repeat * min_repeat_ms / PROBE_MS
    return max(PROBE_MS, min_repeat_ms * min(1.0, most_s / reckoned_s)) if reckoned_s > 0 else min_repeat_ms
