"""The outcome of a line in a phone's shell."""

from __future__ import annotations

from dataclasses import dataclass

from farm.client.model import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOutcome(Outcome):
    """A line run in one phone's shell."""

    exit_code: int | None = None  # None when the line did not come to its end
    stdout: str = ""
    stderr: str = ""

    def brief(self) -> str:
        """The exit code."""
        return "-" if self.exit_code is None else f"exit code {self.exit_code}"
