"""Programs that time a model by themselves, as something to time: one call of the program is a block of samples."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from farm.common.errors import Code, FarmError, UserError
from farm.compiler.inputs import read_array
from farm.programs.description import (
    ExpectedNumbers,
    ProgramDescription,
    asks_accelerator,
    checked_description,
)
from farm.programs.outputs import ProgramOutput, ProgramSamples, grouped, read_output
from farm.programs.work_placement import WorkPlacement, read_placement
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
        self.ran_on: WorkPlacement | None = None  # where its work ran, once it was called; None: not known
        words = (*self.description.command, *self.description.report, *self.description.environment.values())
        self._each_run, self._skipped = False, 0  # runs that a call prints beside those that count
        self._any_number = any("{runs}" in word for word in words)
        self._use, self._daemon, self._side = use, daemon, side

    def call(self, runs: int) -> ProgramSamples:
        """Call it once, with so many timed runs if its command says how many."""
        return read_output(self.description.output, self._run(runs), self.description.skip)

    def _run(self, runs: int) -> ProgramOutput:
        printed = self._daemon.call("program.run", side=self._side, runs=runs)
        return ProgramOutput(printed["stdout"], printed["stderr"])

    def first_call(self) -> float | None:
        """Call it once before the samples, which shows whether it prints each run, and where its work runs.

        Returns the largest error of its numbers; None: its description expects none.
        """
        output = self._run(self.runs)
        first = read_output(self.description.output, output, self.description.skip)
        self.ran_on = self._placement(output)
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

    def _placement(self, output: ProgramOutput) -> WorkPlacement | None:
        """Where its work ran, by its own call for that, or what its first call printed."""
        if self.description.placement:
            try:
                told = self._daemon.call("program.placement", side=self._side)["artifact"]
            except FarmError as error:
                if error.code != Code.PROGRAM_FAILED:
                    raise
                self._daemon.log(f"where its work ran is not known: {error.message}", "warning")
                return None
            output = ProgramOutput(self._daemon.artifact(told).decode("utf-8", "replace"))
        found = read_placement(self.description.output, output)
        asked = asks_accelerator(self.description, self._use.settings)
        if asked and found is not None and not found.delegated:
            raise UserError(
                f"{self.description.name} did all work on the CPU, though asked for {asked}", Code.NOT_OFFLOADED,
                hint="the model has nothing that it takes, or its library or driver is missing; the log has its words",
                evidence=output.end,
            )  # fmt: skip
        return found

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

    def outputs(self) -> npt.NDArray[Any] | None:
        """The numbers of the first output of its last call; None: its description names none.

        Raises:
            UserError: the file has no whole numbers of that type.
        """
        written = self.description.written
        if written is None:
            return None
        data = self._daemon.artifact(self._daemon.call("program.written", side=self._side)["artifact"])
        kind = np.dtype(written.type)
        if len(data) % kind.itemsize:
            raise _wrong(f"{written.file} has {len(data)} bytes, which are no {kind} numbers")
        return np.frombuffer(data, kind)

    def about(self) -> dict[str, Any]:
        """The facts about the program that go into a certificate."""
        said = self.description
        return {
            "runtime": {"name": said.name, "version": said.version, "license": said.license, "output": said.output},
            "library_sha256": self._use.sha256,
            "target": said.name,
            "placement": ", ".join(f"{name}={value}" for name, value in self._use.settings.items()),
            "ran_on": self.ran_on.words if self.ran_on else "",
            "offloaded": self.ran_on.offloaded if self.ran_on else None,
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
