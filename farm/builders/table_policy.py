"""Decisions about builders: which one gets a candidate, is its answer valid, whose fault is a failure. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.bundle.model import Abi

NO_MATCH = "no match"  # how the state of a builder begins that no tuning can use
SILENT_S = 10.0  # without a heartbeat, of which there is one a second: it gets nothing more
PREFETCH = 1.25  # candidates to a slot: the next one is there when one ends
MAX_KILLED = 3  # builders that died with a candidate, the last one with it alone
MAX_FAULTS = 3  # of a builder, one after the other: garbage, a full disk
# ELF's number of the machine (e_machine, elf.h) for each ABI.
_MACHINES = {Abi.ARM64: 183, Abi.ARMV7: 40, Abi.X86_64: 62, Abi.X86: 3, Abi.RISCV64: 243}
_SHARED = 3  # e_type of a shared library


@dataclass(slots=True, eq=False)
class Builder:
    """One connected builder process."""

    name: str  # its certificate's, or that with / and more behind it
    address: str
    slots: int
    identities: frozenset[str]
    versions: Mapping[str, str]
    seen_s: float  # monotonic, of its latest heartbeat
    running: set[str] = field(default_factory=set)  # keys of tasks
    reserved: bool = False  # for a candidate that must be alone
    built: int = 0
    faults: int = 0  # one after the other
    excluded: str = ""  # why it gets nothing more; "": it does

    @property
    def certificate(self) -> str:
        """The name that its token was exchanged under."""
        return self.name.partition("/")[0]

    def succeeded(self) -> None:
        """It gave a good library."""
        self.built += 1
        self.faults = 0

    def failed(self, why: str) -> bool:
        """It could not, by its own fault; whether that excludes it."""
        self.faults += 1
        if self.faults >= MAX_FAULTS and not self.excluded:
            self.excluded = f"{self.faults} faults in a row, the last: {why}"
            return True
        return False

    def state(self, now_s: float, wanted: frozenset[str]) -> str:
        """In words for people; `wanted`: the identities that tunings have asked for."""
        if self.excluded:
            return f"excluded: {self.excluded}"
        if now_s - self.seen_s >= SILENT_S:
            return f"silent for {now_s - self.seen_s:.0f} s"
        if wanted and not wanted & self.identities:
            return f"{NO_MATCH}: another TVM, FFI, linker or farm than the tunings have"
        return "ready"


class BuilderTable:
    """Every builder that is connected, by address."""

    def __init__(self) -> None:
        self.builders: dict[str, Builder] = {}

    def grant(self, identity: str, identities: Sequence[str], now_s: float) -> int:
        """How many candidates a run of that identity may have at builders.

        `identities`: of all runs, its own too; those that could use a builder share it.
        """
        shares = (
            each.slots / sum(one in each.identities for one in identities) for each in self._usable(identity, now_s)
        )
        return math.ceil(PREFETCH * sum(shares))

    def choose(self, identity: str, now_s: float, *, alone: bool) -> Builder | None:
        """The builder of the next candidate: the least busy one for its slots; None: no builder would build the same.

        `alone`: nothing else may run beside it: the builder gets nothing more until it is done.
        """
        usable = self._usable(identity, now_s)
        chosen = min(usable, key=lambda each: (len(each.running) / each.slots, each.name), default=None)
        if chosen is not None and alone:
            chosen.reserved = True
        return chosen

    def _usable(self, identity: str, now_s: float) -> list[Builder]:
        return [
            each
            for each in self.builders.values()
            if identity in each.identities
            and not each.excluded
            and not each.reserved
            and each.slots > 0
            and now_s - each.seen_s < SILENT_S
        ]


def must_be_alone(killed: Sequence[str]) -> bool:
    """Whether a candidate that killed these builders is tried alone next: one beside it may be at fault."""
    return len(killed) == MAX_KILLED - 1


def candidate_error(killed: Sequence[str]) -> str:
    """The error of a candidate that killed these builders; "": it may be tried again."""
    if len(killed) < MAX_KILLED:
        return ""
    return f"it killed {len(killed)} builders, the last one alone: {', '.join(killed)}"


def checked(answer: Any, key: str, abi: Abi) -> tuple[bytes, str]:
    """The library of the candidate of that key for that ABI; b"" with the builder's fault, if it is its fault."""
    if not isinstance(answer, Mapping):
        return b"", "it answered garbage"
    if answer.get("key") != key:
        return b"", "it answered for another candidate"
    if error := answer.get("error"):
        return b"", str(error) if answer.get("host_fault") else ""
    library = answer.get("library")
    if not isinstance(library, bytes) or not library:
        return b"", "it answered nothing"
    if hashlib.sha256(library).hexdigest() != answer.get("sha256"):
        return b"", "its library is not what its hash says"
    if not _is_library(library, abi):
        return b"", f"its library is none for {abi}"
    return library, ""


def _is_library(data: bytes, abi: Abi) -> bool:
    """Whether its header is of a little-endian shared library of that machine (elf.h: e_ident, e_type, e_machine)."""
    return (
        data[:4] == b"\x7fELF"
        and data[4:6] == bytes((abi.bits // 32, 1))
        and int.from_bytes(data[16:18], "little") == _SHARED
        and int.from_bytes(data[18:20], "little") == _MACHINES[abi]
    )
