"""Which findings of the last probes hold on one phone: when one is news, and when it is over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from farm.core.health_rules import Finding, FindingKind
from farm.core.recovery import Ailment

MISSES = 3  # probes in a row without a finding, then it is over: one that comes and goes is one piece of news
# Found in two probes already, or written down for good: they count at once.
_SURE = frozenset(
    {
        FindingKind.STUCK_PROCESS, FindingKind.ORPHAN, FindingKind.ZOMBIE, FindingKind.GPU_FAULT, FindingKind.REBOOTED,
        FindingKind.SERVER_GONE, FindingKind.CLOCK_HELD, FindingKind.FOREIGN_LOAD,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Account:
    """What the last probes found on one phone."""

    first: Mapping[FindingKind, Finding] = field(default_factory=dict)  # found once: the next probe decides
    held: Mapping[FindingKind, Finding] = field(default_factory=dict)  # true now, in its latest words
    missed: Mapping[FindingKind, int] = field(default_factory=dict)  # probes in a row that did not find a held one

    @property
    def known(self) -> frozenset[FindingKind]:
        """Kinds that hold now."""
        return frozenset(self.held)

    @property
    def ailments(self) -> frozenset[Ailment]:
        """What recovery should mend now."""
        return frozenset(each.ailment for each in self.held.values() if each.ailment is not None)


@dataclass(frozen=True, slots=True)
class Advance:
    """What one more probe made of an account."""

    account: Account
    news: tuple[Finding, ...] = ()
    over: tuple[Finding, ...] = ()
    fresh: tuple[Finding, ...] = ()  # that hold and were found by this very probe: recovery acts on these only


def advance(account: Account, found: Iterable[Finding]) -> Advance:
    """Take what one more probe found."""
    now = {each.kind: each for each in found}
    held: dict[FindingKind, Finding] = {}
    missed: dict[FindingKind, int] = {}
    over = []
    for kind, finding in account.held.items():
        if kind in now:
            held[kind] = now[kind]
        elif (misses := account.missed.get(kind, 0) + 1) < MISSES:
            held[kind], missed[kind] = finding, misses
        else:
            over.append(finding)
    sure = {
        kind: finding for kind, finding in now.items() if kind not in held and (kind in _SURE or kind in account.first)
    }
    first = {kind: finding for kind, finding in now.items() if kind not in held and kind not in sure}
    after = Account(first, {**held, **sure}, missed)
    fresh = tuple(finding for kind, finding in after.held.items() if kind in now)
    return Advance(after, tuple(sure.values()), tuple(over), fresh)
