"""The threads that a job gets where TVM's pool is smaller than its cores."""

from types import SimpleNamespace

import pytest

from farm.common.errors import Code, UserError
from farm.model.placement import ThreadPlacement
from farm.worker.session import place

BIG = 0xFC  # six cores


class Pool:
    """TVM's pool on a phone: at most so many threads."""

    def __init__(self, most):
        self.threads = self.most = most

    def get_function(self, name):
        return {"runtime.config_threadpool": self.configure, "runtime.NumThreads": lambda: self.threads}[name]

    def configure(self, _mode, wanted):
        self.threads = min(wanted, self.most)


class Daemon:
    def call(self, verb, **asked):
        assert (verb, asked) == ("place", {"mask": BIG, "top_app": False})


@pytest.mark.parametrize(("most", "threads"), [(8, 6), (4, 4)])
def test_without_a_number_there_is_a_thread_for_each_core_as_far_as_the_pool_goes(most, threads):
    found = place(SimpleNamespace(raw=Pool(most)), Daemon(), ThreadPlacement(mask=BIG))
    assert found.words == f"{threads} threads, cores 2-7"


def test_a_number_above_the_pool_is_refused():
    with pytest.raises(UserError, match="has 4 threads, too few for 6") as caught:
        place(SimpleNamespace(raw=Pool(4)), Daemon(), ThreadPlacement(6, BIG))
    assert caught.value.code == Code.NO_SUCH_CORES
