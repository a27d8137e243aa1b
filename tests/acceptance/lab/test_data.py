"""A tuning's records follow it from a host that is killed to the other; tests/integration/lab has other data."""

from __future__ import annotations

import pytest

from tests.support import postgres
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import until
from tests.support.whole_lab import GO, JOB_LIMIT_S, LISTEN, TwoHosts, whole_lab

pytestmark = pytest.mark.timeout(600.0)


@pytest.fixture(scope="module")
def lab():
    postgres.need()
    with whole_lab() as whole:
        yield TwoHosts(whole, LISTEN, LISTEN)
        until(lambda: not whole.judged())


def test_a_tuning_whose_host_is_killed_goes_on_at_the_other_with_the_trials_of_before(lab):
    model, trials = lab.one.client.put_artifact(dense_onnx(layers=2)), 60
    busy = lab.shell(lab.here.name)
    lab.until(busy, "running")
    spec = {"kind": "tune", "model": model, "name": "dense.onnx", "trials": trials, "cost_model": "random"}
    job = lab.submit(**spec, on="android", timeout_s=JOB_LIMIT_S)
    kept = (
        f"SELECT host FROM attempt JOIN lease ON lease = lease.id WHERE attempt.job = '{job}' AND facts LIKE '%parts%'"
    )
    until(lambda: lab.lab.rows(kept))
    assert lab.lab.rows(kept) == [("two",)]
    lab.here.shell(f"touch {GO}")
    lab.until(busy, "done")
    lab.two.daemon.kill()
    lab.until(job, "done")
    shown = lab.job(job)
    assert [each["state"] for each in shown["attempts"]] == ["interrupted", "done"]
    assert shown["result"]["trials"] == trials
    assert shown["result"]["earlier_trials"] > 0
    assert sum(each["trials"] for each in shown["result"]["phones"]) == trials - failed_trials(shown["result"])
    lab.two.daemon.start().close()


def failed_trials(result):
    """Those that no phone has measured: they were not built."""
    return sum(each["failed"] for each in result["tasks"])
