"""Where the threads of a build run on a phone: how many, on which cores, in which group of Android's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from farm.common.errors import Code, UserError
from farm.model.identity import CpuCluster


@dataclass(frozen=True, slots=True)
class ThreadPlacement:
    """One choice, for one phone."""

    threads: int = 0  # of TVM's pool; 0: one for each core of the mask, or TVM's own choice
    mask: int = 0  # bit n is core n; 0: where TVM puts its threads
    top_app: bool = False

    @property
    def words(self) -> str:
        """As certificates and histories have it: "2 threads, cores 4-7, top-app"."""
        parts = [f"{self.threads} thread{'s' * (self.threads != 1)}"] if self.threads else []
        if self.mask:
            parts.append(f"core{'s' * (self.mask.bit_count() != 1)} {core_ranges(self.mask)}")
        return ", ".join([*parts, *(["top-app"] if self.top_app else [])])


def placed(
    threads: int | None, cores: str | None, top_app: bool, clusters: Sequence[CpuCluster], phone: str
) -> ThreadPlacement:
    """What a job asks for, on a phone with these clusters.

    Raises:
        UserError: the phone has no such cores, or not so many.
    """
    count = sum(each.cores for each in clusters)
    mask = mask_of(cores, clusters, phone) if cores else 0
    usable = mask.bit_count() or count
    if threads and usable and threads > usable:
        where = f"{usable} core{'s' * (usable != 1)}" + (f" in {cores}" if cores else "")
        raise UserError(
            f"{phone} has {where}, too few for {threads} threads", Code.NO_SUCH_CORES, hint=f"--threads {usable}"
        )
    return ThreadPlacement(threads or 0, mask, top_app)


def mask_of(cores: str, clusters: Sequence[CpuCluster], phone: str) -> int:
    """The cores that `big`, `little` or a mask means on a phone.

    A kernel numbers the cores of a cluster in a row. Little ones are those of the slowest clock, big ones all others:
    as TVM has it.

    Raises:
        UserError: it has no such cores.
    """
    if cores not in ("big", "little"):
        mask, count = int(cores, 16), sum(each.cores for each in clusters)
        if count and mask >> count:
            raise UserError(
                f"{phone} has cores 0 to {count - 1}, and {cores} names core {mask.bit_length() - 1}",
                Code.NO_SUCH_CORES, hint=f"all of its cores are {(1 << count) - 1:#x}",
            )  # fmt: skip
        return mask
    clocks = {each.max_khz for each in clusters}
    if len(clocks) < 2 or 0 in clocks:
        why = "its cores are all alike" if len(clocks) == 1 and 0 not in clocks else "it does not tell their clocks"
        raise UserError(
            f"{phone} has no {cores} cores: {why}", Code.NO_SUCH_CORES, hint="name cores by a mask: --cores 0x3"
        )
    little = mask = core = 0
    for each in clusters:
        of_cluster = ((1 << each.cores) - 1) << core
        little |= of_cluster if each.max_khz == min(clocks) else 0
        mask |= of_cluster
        core += each.cores
    return little if cores == "little" else mask & ~little


def core_ranges(mask: int) -> str:
    """`0-3,6`."""
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in _ranges(mask))


def _ranges(mask: int) -> Iterator[tuple[int, int]]:
    cores = [core for core in range(mask.bit_length()) if mask >> core & 1]
    breaks = [place for place, (one, two) in enumerate(pairwise(cores), 1) if two != one + 1]
    for start, end in pairwise([0, *breaks, len(cores)]):
        if start < end:
            yield cores[start], cores[end - 1]
