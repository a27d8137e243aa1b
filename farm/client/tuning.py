"""`farm.FarmRunner` and `farm.FarmBuilder`: the farm's phones for a MetaSchedule script of one's own."""

from __future__ import annotations

import importlib
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.client.tuning_phones import FarmPhones, logger
from farm.common.errors import FarmError
from farm.common.install import cache_home
from farm.compiler.reference_kernel import load_kernel, reference_kernel
from farm.tuning.builder import FarmBuilder
from farm.tuning.candidate import Measured
from farm.tuning.phone_speed import LIMIT, SpeedJudge, judge_each_kind
from farm.tuning.runner import PoolRunner
from farm.tuning.stock import ArchiveLinker, load_intrinsics

__all__ = ["FarmBuilder", "FarmPhones", "FarmRunner"]


class FarmRunner(PoolRunner):
    """A MetaSchedule runner on the farm's phones: `ms.tune_tir(..., runner=FarmRunner(on="gpu=adreno-740"))`.

    It holds its phones from the first moment until it is closed, by `close`, at the end of a `with` block, or when the
    script ends. Phones that are lost are replaced; while there is none, the run waits and reports it.
    """

    def __init__(
        self,
        on: str,
        *,
        devices: int = 1,
        socket: Path | str | None = None,
        evaluator: EvaluatorConfig | None = None,
        timeout_s: float = 10.0,
        same_limit: float | None = LIMIT,
        cache: Path | None = None,
        measured: Callable[[Measured], None] = lambda _: None,
        on_notice: Callable[[str], None] = logger.warning,
    ) -> None:
        """Ask for phones; does not wait for them.

        Args:
            on: which phones (a selector).
            devices: how many at once; all are identical on paper (alike), and of a kind of which there are
                so many if there is one.
            socket: the daemon's control socket; None: as `farm` finds it.
            evaluator: how often each candidate is run; the default is MetaSchedule's.
            timeout_s: of one candidate on a phone.
            same_limit: how far a phone's reference kernel may be from the others', relative, before it is left out for
                some minutes; None: as far as it likes.
            cache: the folder of reference kernels; None: $XDG_CACHE_HOME/farm, or ~/.cache/farm.
            measured: called for each measurement with its phone and factor, from other threads.
            on_notice: called with sentences for people, from other threads.

        Raises:
            NoPhoneError: no phone matches.
            DaemonUnreachableError: no daemon answers.
        """
        self._phones = FarmPhones(on, devices, socket, on_notice)
        load_intrinsics()  # else the search imports those of CUDA too, which no phone has: most of ten seconds
        folder = cache or cache_home() / "farm"

        def judge_of(kind: str) -> SpeedJudge | None:
            try:
                return _judge(self._phones.target(kind), folder, same_limit)
            except (FarmError, OSError) as error:
                on_notice(f"how fast each phone is now is not taken out of what it measures: {error}")
                return None

        phones = self._phones
        super().__init__(
            phones,
            evaluator=evaluator,
            timeout_s=timeout_s,
            measured=measured,
            report=on_notice,
            judge_of=judge_each_kind(judge_of),
            link=ArchiveLinker(lambda: phones.awaited_target("cpu"), on_notice),
        )
        # Not at garbage collection alone: a script may just end. Giving phones back takes a thread pool, which the
        # interpreter closes before it calls `atexit`; the later one registers here, the earlier one is called.
        self._finalizer = weakref.finalize(self, _end, self._pool, self._phones)
        importlib.import_module("concurrent.futures.thread")
        threading._register_atexit(self._finalizer)  # type: ignore[attr-defined] # noqa: SLF001 - nothing public is in time

    def close(self) -> None:
        """End all sessions and give the phones back. May be called twice."""
        self._finalizer()


def _end(pool: Any, phones: FarmPhones) -> None:
    pool.close()
    phones.close()


def _judge(target: object | None, cache: Path, same_limit: float | None) -> SpeedJudge | None:
    """A judge of phones by the reference kernel for a target; None: there is no kernel for it."""
    if target is None:
        return None
    kernel = reference_kernel(target, cache)
    return SpeedJudge(lambda session: load_kernel(session, kernel), limit=same_limit)
