"""The threads of TVM's pool on a phone: how many, and where, for a session that is open."""

from __future__ import annotations

from farm.common.errors import Code, UserError
from farm.model.placement import ThreadPlacement
from farm.worker.channel import DaemonChannel
from farm.worker.session import PhoneSession, on_phone

FASTEST_FIRST = 1  # TVM's mode kBig: a thread per core, from the one of the highest clock on


def place(session: PhoneSession, daemon: DaemonChannel, placement: ThreadPlacement) -> ThreadPlacement:
    """Set the pool's threads, then their cores; returns the placement with the number of threads in force.

    The pool's threads begin with its first use, and TVM binds each to a core: a mask counts only after that.

    Raises:
        UserError: the pool has fewer threads, or the phone allows no such cores.
        PhoneError: the phone failed.
    """
    wanted = placement.threads or placement.mask.bit_count()
    with on_phone("setting the threads"):
        if wanted:
            session.raw.get_function("runtime.config_threadpool")(FASTEST_FIRST, wanted)
        threads = int(session.raw.get_function("runtime.NumThreads")())
    if placement.threads > threads:
        raise UserError(
            f"TVM's pool on this phone has {threads} thread{'s' * (threads != 1)}, too few for {placement.threads}",
            Code.NO_SUCH_CORES,
            hint=f"--threads {threads}; on x86 phones TVM takes half of the cores",
        )
    if placement.mask or placement.top_app:
        daemon.call("place", mask=placement.mask, top_app=placement.top_app)
    return ThreadPlacement(threads, placement.mask, placement.top_app)
