"""The configuration of jobs: `[jobs]`, `[toolchain.NAME]`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

MAX_USERS = 10_000  # whose workers have uids of their own at once


@dataclass(frozen=True, slots=True)
class ToolchainConfig:
    """A host interpreter with a TVM, and the bundle built from the same TVM (empty: any for the phone's ABI)."""

    python: str = sys.executable  # an interpreter with TVM and this very farm
    bundle: str = ""  # built from the same TVM; empty: the one added last for the phone's ABI


@dataclass(frozen=True, slots=True)
class JobsConfig:
    """How jobs run on this host."""

    # attempts at once: each compiles on one core and holds some 100 MB of its own
    workers: Annotated[int, Field(gt=0)] = 8
    user: str = "farm-job"  # whom workers become when the daemon is root and there is such a user
    # the first of 10,000 uids and gids, of which the workers of each user get their own; 0: all are `user`
    first_uid: Annotated[int, Field(ge=0, le=2**31 - 1 - MAX_USERS)] = 0x7000_0000  # used by no login or container
