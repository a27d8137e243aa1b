"""What `farm demo` says: a line for each ready phone, what it waits for where that lasts, a summary in the end."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farm.cli.output import device_step, print_note
from farm.common.durations import many

if TYPE_CHECKING:
    from farm.client.model import Outcome

SILENT_S = 10.0  # without a line; then the demo says what it waits for
ENDS = frozenset({"device.ready", "device.quarantined"})  # of a phone's way that are worth a line
NEXT = (
    ("farm demo --stay", "keep a farm up, for commands of your own"),
    ("docs/quickstart.md", "half an hour: a network, tuned on two phones"),
    ("README.md", "the way to your first phones"),
)


class DemoProgress:
    """Prints lines on stderr; after `silent_s` without one, what the demo waits for."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._step = ""
        self._printed, self._ended = threading.Event(), False

    def note(self, line: str) -> None:
        """Print a line, which is also what is waited for from now on."""
        self._printed.set()
        print_note(line)
        self._step = line.strip()

    def wait_for(self, step: str) -> None:
        """Take a step that is printed only where it lasts."""
        self._step = step.strip()

    def show(self, event: Mapping[str, Any]) -> None:
        """Print the end of a phone's way to its users; take other steps of it."""
        line = f"{event['subject']}: {device_step(event)}"
        (self.note if event["kind"] in ENDS else self.wait_for)(f"  {line}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look after the silence meanwhile."""
        thread = threading.Thread(target=self._watch, name="demo-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended = True
            self._printed.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended:
            if not self._printed.wait(self._silent_s) and self._step:
                print_note(f"  ... {self._step.removesuffix(' ...')}")
            self._printed.clear()

    def run(self, command: Sequence[str]) -> int:
        """Run a command with its answer in sight, and its steps where they last; all of them when it fails."""
        sys.stdout.flush()
        self.wait_for("starting it")
        said: list[str] = []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    said.append(line.rstrip())
                    if " waits: " not in line:  # for another phone, whose steps are here too
                        self.wait_for(line)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            for line in said:
                print_note(line)
        self.wait_for("")
        self._printed.set()
        return process.returncode


def summary_lines(
    phones: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome], took_s: float, *, stays: bool = False
) -> Iterator[str]:
    """What the demo found, for a screen of 80 x 24: phones, numbers with verdicts, both runtimes, speed-up, what next.

    Args:
        phones: rows of the status.
        outcomes: of its jobs.
        took_s: the demo's duration.
        stays: whether it stays up now, as the first advice is.
    """
    from farm.kinds.bench.command import result_lines
    from farm.kinds.outcomes import CompareOutcome, TuneOutcome
    from farm.results.series import runtime_words

    yield f"== In {took_s:.0f} s, on {len(phones)} virtual phones that were found, set up and checked =="
    benches = [each for each in outcomes if each.job.kind == "bench" and each.ok]
    spec = benches[0].spec if benches else None
    yield from result_lines([{**each.result, "device": each.device} for each in benches], spec=spec)
    for each in outcomes:
        if isinstance(each, CompareOutcome) and each.ratio and each.interval:
            other = runtime_words(each.result["b"])
            yield f"{other}: {each.ratio:.2f} of TVM's time ({_between(each.interval)}): {each.answer}."
        elif isinstance(each, TuneOutcome) and each.speedup and each.interval:
            times = f"{each.speedup:.2f} times as fast ({_between(each.interval)})"
            yield f"Tuned by {many(each.trials, 'trial')}: {times}: {each.result['speedup']['answer']}."
    yield "What next:"
    advice = NEXT[stays:]
    yield from (f"  {command:<{max(len(each) for each, _ in advice)}}  {what}" for command, what in advice)


def _between(interval: tuple[float, float]) -> str:
    return f"99 %: {interval[0]:.2f} to {interval[1]:.2f}"
