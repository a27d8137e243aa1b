"""One build on one phone, in turns under two runtime bundles.

Changing the bundle restarts the phone's RPC server, so each turn is a session of its own with a block of samples in
it, and a block's median is what is paired. In A B B A the two blocks under B have no change between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from farm.core.errors import UserError
from farm.jobs.tasks import BundleUse
from farm.worker.timing import Timer

SAMPLES = 8  # in a block: 0.1 s, beside 0.5 s for a change and a session


class BundleVersionError(UserError):
    """The library that is compiled here does not run under a bundle."""

    code = "bundle_version"


class Turn(Protocol):
    """The model and the reference kernel in a session under one bundle."""

    def samples(self, number: int, repeat: int) -> Sequence[float]:
        """So many samples of the model, seconds per run."""
        ...

    def reading(self) -> float:
        """One reading of the reference kernel, seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """What was timed in one turn, seconds."""

    samples_s: tuple[float, ...]
    reference_s: float  # geometric mean of the readings before and after

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"samples_s": list(self.samples_s), "reference_s": self.reference_s}


class Turns:
    """Takes blocks; `timer` makes each side one that `farm.worker.timing.time_pairs` times."""

    def __init__(
        self,
        bundles: tuple[BundleUse, BundleUse],
        change: Callable[[str], None],
        turn: Callable[[int], AbstractContextManager[Turn]],
    ) -> None:
        """`change`: to a bundle by its hash. `turn`: a session for side 0 or 1, under the bundle that is on now."""
        self._bundles = bundles
        self._change = change
        self._turn = turn
        self._on = ""
        self._nominal_s = math.nan
        self.blocks: tuple[list[Block], list[Block]] = ([], [])

    def timer(self, side: int) -> Timer:
        """A block under that side's bundle as one sample: its median, at the speed of the clock in the first one."""

        def timed(number: int, repeat: int) -> list[float]:  # noqa: ARG001 - a block is one sample
            block = self._block(side, number)
            if math.isnan(self._nominal_s):
                self._nominal_s = block.reference_s
            self.blocks[side].append(block)
            return [at_speed(block, self._nominal_s)]

        return timed

    def _block(self, side: int, number: int) -> Block:
        wanted = self._bundles[side].hash
        if wanted != self._on:
            self._change(wanted)
            self._on = wanted
        with self._turn(side) as turn:
            before = turn.reading()
            samples = tuple(turn.samples(number, SAMPLES))
            return Block(samples, math.sqrt(before * turn.reading()))


def at_speed(block: Block, nominal_s: float) -> float:
    """What the block's median would be on a clock that runs the reference kernel in `nominal_s`; seconds."""
    return median(block.samples_s) * nominal_s / block.reference_s


def check_versions(bundles: Sequence[BundleUse], tvm: str) -> None:
    """Whether libraries of this TVM run under all of them. Pure.

    Raises:
        BundleVersionError: one is of another version; both are named.
    """
    for bundle in bundles:
        if bundle.tvm != tvm:
            raise BundleVersionError(
                f"bundle {bundle.name} is of TVM {bundle.tvm or '?'}, the toolchain compiles with TVM {tvm}: its"
                " libraries do not run there",
                hint="bench with each bundle in its own toolchain, and compare the two results",
            )
