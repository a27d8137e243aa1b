"""Tests that become another user of this host need root, and an interpreter that others can reach."""

import sys
from pathlib import Path

import pytest

import farm
from farm.jobs.worker_user import blocking_folder, find_worker_user


def _why_not() -> str:
    nobody = find_worker_user("nobody")
    if nobody is None:
        return "only root can become another user"
    blocked = blocking_folder(nobody, (Path(sys.executable), Path(farm.__file__)))
    return (
        f"other users cannot reach this interpreter: {blocked} is closed (make PYTHON=/usr/bin/python3)"
        if blocked
        else ""
    )


needs_another_user = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "as root, with an interpreter for all")
