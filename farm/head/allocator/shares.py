"""Fair share: each user's use of devices and the next user to serve: decaying device-seconds, weighted.

Use decays with a half-life, so u seconds used t ago count u * 2**(-t / half-life) now. All use decays alike, so users
are compared on a scale that grows instead: a second used at time t counts g(t) = 2**(t / half-life) forever. A lease
from a to b then adds (g(b) - g(a)) / rate, which makes a running one two numbers: nothing is updated as time passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from farm.head.config import UserConfig

NEGLIGIBLE_S = 1e-3  # use below this is forgotten with its user
SWEEP_MARGIN = 256  # accounts that may pile up before the negligible ones are dropped
MAX_EXPONENT = 64  # half-lives after which the scale starts again: sums keep all their 53 bits


@dataclass(slots=True, eq=False)
class _Account:
    """Use on the growing scale is `level + running * g(now) / rate`."""

    quota: UserConfig
    level: float = 0.0
    held: int = 0
    cleaned: int = 0  # devices that are cleaned and checked after their leases

    @property
    def running(self) -> int:
        return self.held + self.cleaned


class UsageLedger:
    """Every user's account. Unknown users have used nothing and cost nothing."""

    def __init__(self, half_life_s: float, held_counts_s: float) -> None:
        """Open the books.

        Args:
            half_life_s: how long until use counts half.
            held_counts_s: what each running lease counts in advance when the use of users is compared.
        """
        self._rate = math.log(2) / half_life_s
        self._held_counts_s = held_counts_s
        self._half_life_s = half_life_s
        self._origin_s: float | None = None
        self._default_quota = UserConfig()
        self._quotas: Mapping[str, UserConfig] = {}
        self._accounts: dict[str, _Account] = {}
        self._sweep_at = SWEEP_MARGIN

    def set_quotas(self, default: UserConfig, by_user: Mapping[str, UserConfig]) -> None:
        """From now on users count and may have as much as said here."""
        self._default_quota = default
        self._quotas = dict(by_user)
        for user, account in self._accounts.items():
            account.quota = self.quota(user)

    def load(self, by_user: Mapping[str, float], now_s: float) -> None:
        """Set what users have used so far: decayed device-seconds. Leases running now count from now on as ever."""
        scale = self._scale(now_s)
        for user, used_s in by_user.items():
            account = self._account(user)
            account.level = (used_s - account.running / self._rate) * scale

    def take(self, user: str, now_s: float) -> None:
        """The user has one more device."""
        scale = self._scale(now_s)
        account = self._account(user)
        account.level -= scale / self._rate
        account.held += 1

    def give_back(self, user: str, now_s: float) -> None:
        """The user has one device fewer."""
        scale = self._scale(now_s)
        account = self._account(user)
        account.level += scale / self._rate
        account.held -= 1
        if len(self._accounts) > self._sweep_at:
            self._sweep(now_s)

    def begin_cleaning(self, user: str, now_s: float) -> None:
        """A device that the user gave back is cleaned and checked from now on: it counts as use, and in no quota."""
        account = self._account(user)
        account.level -= self._scale(now_s) / self._rate
        account.cleaned += 1

    def end_cleaning(self, user: str, ended_s: float, now_s: float) -> None:
        """That ended, at `ended_s`."""
        scale = self._scale(now_s)
        account = self._account(user)
        account.level += scale * 2.0 ** ((ended_s - now_s) / self._half_life_s) / self._rate
        account.cleaned -= 1

    def quota(self, user: str) -> UserConfig:
        """The user's limits."""
        return self._quotas.get(user, self._default_quota)

    def held(self, user: str) -> int:
        """How many devices the user has."""
        account = self._accounts.get(user)
        return account.held if account is not None else 0

    def may_hold_more(self, user: str, *, without: int = 0) -> bool:
        """Whether the user's quota has room for one more device, were they to give back `without` of them."""
        limit = self.quota(user).devices
        return limit <= 0 or self.held(user) - without < limit

    def usage_s(self, user: str, now_s: float) -> float:
        """Decayed device-seconds, running leases up to now."""
        scale = self._scale(now_s)
        account = self._accounts.get(user)
        return max(0.0, account.level / scale + account.running / self._rate) if account is not None else 0.0

    def weighted_use(self, users: Mapping[str, object], now_s: float) -> dict[str, float]:
        """How much each user has had for their weight; who has least is served first. Comparable at one time only."""
        scale = self._scale(now_s)
        running, held_counts = scale / self._rate, scale * self._held_counts_s
        known = self._accounts
        return {
            user: (account.level + account.running * running + account.held * held_counts) / account.quota.weight
            if (account := known.get(user)) is not None
            else 0.0
            for user in users
        }

    def weighted_use_of(self, user: str, now_s: float, *, without: int = 0) -> float:
        """As `weighted_use` for one user, were they to give back `without` devices now."""
        (use,) = self.weighted_use({user: None}, now_s).values()
        return use - without * self._held_counts_s * self._scale(now_s) / self.quota(user).weight

    def _account(self, user: str) -> _Account:
        account = self._accounts.get(user)
        if account is None:
            account = self._accounts[user] = _Account(self.quota(user))
        return account

    def _scale(self, now_s: float) -> float:
        """g(now). Levels read before the call may be on an older scale."""
        if self._origin_s is None:
            self._origin_s = now_s
        exponent = (now_s - self._origin_s) / self._half_life_s
        if exponent > MAX_EXPONENT:
            for account in self._accounts.values():
                account.level *= 2.0**-exponent
            self._origin_s = now_s
            exponent = 0.0
        return float(2.0**exponent)

    def _sweep(self, now_s: float) -> None:
        self._accounts = {
            user: account
            for user, account in self._accounts.items()
            if account.running or self.usage_s(user, now_s) > NEGLIGIBLE_S
        }
        self._sweep_at = 2 * len(self._accounts) + SWEEP_MARGIN
