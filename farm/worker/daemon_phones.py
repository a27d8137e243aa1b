"""A tune attempt's pool as its runner sees it: implements farm.tuning.phones.PhoneSource over the worker's verbs."""

from __future__ import annotations

from collections.abc import Sequence

from farm.jobs.attempt import SessionOffer
from farm.tuning.phones import PooledPhone, PoolState
from farm.worker.daemon import Daemon


class DaemonPhones:
    """The phones of this attempt. From any thread."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def state(self) -> PoolState:
        """The phones there are now."""
        told = self._daemon.call("pool")
        return PoolState(tuple(PooledPhone(**each) for each in told["phones"]), told["wanted"], told["waits"])

    def search(self, *, on: bool) -> None:
        """Have all the phones that the job asks for, or only one: the others are given back."""
        self._daemon.call("pool.search", on=on)

    def open_session(self, lease: str) -> SessionOffer:
        """A way to one phone, good for one session.

        Raises:
            PhoneError: (`not_in_pool`) it is not in the pool any more.
        """
        return self._daemon.open_session(lease)

    def abort_session(self, lease: str, reason: str) -> None:
        """Cut the session and clean the phone, which comes back under the same lease when it is fit."""
        self._daemon.abort_session(reason, lease)

    def give_back(self, lease: str) -> None:
        """Let others have the phone; another one is asked for by itself.

        Raises:
            PhoneError: (`not_in_pool`) it is not in the pool any more.
        """
        self._daemon.call("pool.give_back", lease=lease)

    def poisoned(self, artifacts: Sequence[str]) -> frozenset[str]:
        """Those of these libraries (SHA-256) that killed what ran them twice."""
        return self._daemon.poisoned(artifacts)

    def tell_poison(self, artifact: str, device: str, what: str) -> None:
        """A library has killed its process on `device` twice, the second time alone."""
        self._daemon.tell_poison(artifact, device, what, kills=2)
