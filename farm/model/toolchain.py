"""A toolchain, as configuration, store and workers have it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A named pair: a host interpreter with some TVM version, and the runtime bundle built from the same."""

    name: str
    python: Path
    bundle: str = ""
    tvm_version: str = ""  # as its TVM reported when it was added by command; "": of the configuration
