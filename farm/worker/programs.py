"""Programs that time a model by themselves, as something to time: one call of the program is a block of samples."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.common.errors import Code, UserError
from farm.compiler.inputs import read_array
from farm.programs.description import ExpectedNumbers, ProgramDescription, checked_description
from farm.programs.outputs import ProgramOutput, ProgramSamples, grouped, read_output
from farm.worker.channel import DaemonChannel
from farm.worker.timing import ANY_RUNS, RunLimits, SamplingPlan, Timer

MAX_PRINTED = 500  # runs of a call that prints each: its output is bounded
MAX_GROUPS = 4  # samples of one call, each the mean of runs in a row: the reference kernel is timed once beside them


class PhoneProgram:
    """A program that is installed on the attempt's phone."""

    def __init__(self, daemon: DaemonChannel, use: Any, side: int = 0) -> None:
        """`use`: a `ProgramUse`; `side`: of a comparison."""
        self.description: ProgramDescription = checked_description(dict(use.description), "the description")
        self.runs: int = use.runs
        self.number = use.runs  # averaged into a sample, once the program was called
        self.block = 1  # samples of one call
        words = (*self.description.command, *self.description.report, *self.description.environment.values())
        self._each_run, self._skipped = False, 0  # runs that a call prints beside those that count
        self._any_number = any("{runs}" in word for word in words)
        self._use, self._daemon, self._side = use, daemon, side

    def call(self, runs: int) -> ProgramSamples:
        """Call it once, with so many timed runs if its command says how many."""
        printed = self._daemon.call("program.run", side=self._side, runs=runs)
        output = ProgramOutput(printed["stdout"], printed["stderr"])
        return read_output(self.description.output, output, self.description.skip)

    def first_call(self) -> float | None:
        """Call it once before the samples, which shows whether it prints each run.

        Returns the largest error of its numbers; None: its description expects none.
        """
        first = self.call(self.runs)
        if first.runs == 1:
            self._each_run, self._skipped = True, self.description.skip
            self.block = len(grouped(first.seconds, MAX_GROUPS))
            self.number = max(1, len(first.seconds) // self.block)
        else:
            self.number = first.runs or self.runs
        expected = self.description.expected
        if expected is None:
            return None
        written = self._daemon.artifact(self._daemon.call("program.numbers", side=self._side)["artifact"])
        return check_numbers(expected, self._daemon.artifact(self._use.reference), written)

    def plan(self, half_width: float, measure_s: float, repeat: int | None) -> SamplingPlan:
        """How much to measure; to be asked after the first call."""
        return SamplingPlan(half_width, measure_s, number=self.number, repeat=repeat, block=self.block)

    def timer(self) -> Timer:
        """Calls of it, each as many samples as asked for, or fewer where it prints a mean.

        A program whose command does not take {runs} decides how many runs they are.
        """

        def timed(number: int, repeat: int) -> Sequence[float]:
            return grouped(self.call(number * repeat + self._skipped).seconds, repeat)

        return timed

    def limits(self) -> RunLimits:
        """The runs of a sample that is one call; to be asked after the first call."""
        runs = self.number * self.block
        if not self._any_number:
            return RunLimits(runs, runs, runs)
        most = MAX_PRINTED if self._each_run else ANY_RUNS.most
        return RunLimits(runs, 1, max(runs, most))

    def about(self) -> dict[str, Any]:
        """The facts about the program that go into a certificate."""
        said = self.description
        return {
            "runtime": {"name": said.name, "version": said.version, "license": said.license, "output": said.output},
            "library_sha256": self._use.sha256,
            "target": said.name,
            "placement": ", ".join(f"{name}={value}" for name, value in self._use.settings.items()),
        }


def check_numbers(expected: ExpectedNumbers, reference: bytes, written: bytes) -> float:
    """The largest difference between the numbers that a program wrote and those expected of it.

    Args:
        expected: what the description says.
        reference: a .npy file.
        written: raw numbers of the reference's type, or a .npy file.
    """
    wanted = _array(reference, expected.reference).ravel()
    npy = written.startswith(b"\x93NUMPY")
    if not npy and len(written) != wanted.nbytes:
        raise _wrong(f"{expected.file} has {len(written)} bytes; {wanted.size} {wanted.dtype} are {wanted.nbytes}")
    found = _array(written, expected.file).ravel() if npy else np.frombuffer(written, wanted.dtype)
    if found.size != wanted.size:
        raise _wrong(f"{expected.file} has {found.size} numbers; {wanted.size} are expected")
    differences = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    error = float(differences.max(initial=0.0))
    allowed = expected.tolerance * float(np.abs(wanted.astype(np.float64)).max(initial=0.0))
    if not error <= allowed:  # NaN is in no tolerance
        raise _wrong(f"{expected.file} is off by {error:.3g}; {allowed:.3g} is allowed")
    return error


def _array(data: bytes, name: str) -> Any:
    try:
        array = read_array(io.BytesIO(data), len(data))
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{name} is no .npy file", Code.BAD_PROGRAM, hint="numpy.save(path, array)") from error
    if array.dtype.kind not in "fiub":
        raise UserError(f"{name} holds no numbers ({array.dtype})", Code.BAD_PROGRAM, hint="numpy.save(path, array)")
    return array


def _wrong(message: str) -> UserError:
    return UserError(message, Code.PROGRAM_WRONG, hint="its inputs and the reference's must be the same")
