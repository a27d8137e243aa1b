"""Commands that were started and say something."""

import subprocess

import pytest

LIMIT_S = 60.0


def until_printed(process: subprocess.Popen[str], words: str) -> None:
    """Read what it says until there is such a line."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"it ended without saying {words!r}")
