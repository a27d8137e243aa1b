"""A run that is closed while a session opens says nothing about it."""

import queue
import threading

import pytest
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.common.errors import PhoneError
from farm.tuning.measurement_slot import SlotSettings
from farm.tuning.phones import PooledPhone, PoolState
from farm.tuning.runner import PhonePool
from tests.support.waiting import HANG_S


class Source:
    """One phone whose session opens until it is cut, and then does not open."""

    def __init__(self):
        self.opening, self.cut = threading.Event(), threading.Event()

    def state(self):
        return PoolState((PooledPhone("lease", "pixel"),), 1)

    def open_session(self, lease):
        self.opening.set()
        self.cut.wait()
        raise PhoneError(f"{lease} is over")

    def abort_session(self, lease, reason):
        self.cut.set()


@pytest.mark.parametrize(("before", "told"), [(False, []), (True, ["pixel: lease is over"])])
def test_only_a_session_that_does_not_open_before_is_told(before, told):
    source, said = Source(), queue.Queue()
    pool = PhonePool(source, SlotSettings(EvaluatorConfig(), 1.0), lambda _: None, said.put)
    assert source.opening.wait(HANG_S)
    heard = []
    if before:
        source.cut.set()
        heard.append(said.get(timeout=HANG_S))
    pool.close()
    assert source.cut.is_set()
    assert [*heard, *said.queue] == told
