"""Data that follows the work over two hosts: artifacts, bundles, logs, and a tuning's records."""

from __future__ import annotations

import hashlib
import os

import pytest

from tests.support import postgres
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import phones, until
from tests.support.whole_lab import whole_lab

LIMIT_S = 600.0
GO = "/data/local/tmp/go"
WAIT = f"echo first; until [ -e {GO} ]; do sleep 0.2; done; rm {GO}; echo second"
pytestmark = pytest.mark.timeout(LIMIT_S)


class DataLab:
    """A head and two hosts with a phone each, which reach each other."""

    def __init__(self, lab):
        self.lab = lab
        lab.head().decides()
        listen = 'listen = "tcp://127.0.0.1:0"\n'
        self.one, self.two = lab.host("one", "galaxy-s9", config=listen), lab.host("two", "galaxy-a55", config=listen)
        self.here, self.there = phones(self.one)[0], phones(self.two)[0]
        for phone in (self.here, self.there):  # a phone of the other host may be ready first
            until(lambda phone=phone: phone.row["state"] == "ready")

    def until(self, job, state):
        until(lambda: self.one.client.call("job.show", job=job)["job"]["state"] == state)

    def submit(self, farm, on, command, **spec):
        fields = {"kind": "shell", "on": on, "command": command, "timeout_s": LIMIT_S, **spec}
        [row] = farm.client.call("job.submit", spec=fields)["jobs"]
        return str(row["id"])


@pytest.fixture(scope="module")
def lab():
    postgres.need()
    with whole_lab() as whole:
        yield DataLab(whole)
        until(lambda: not whole.judged())


def test_what_is_put_at_one_host_is_had_at_the_other(lab):
    data = os.urandom(3_000_000)
    sha256 = lab.one.client.put_artifact(data)
    assert lab.two.client.get_artifact(sha256) == data
    rows = "SELECT host FROM artifact_copy WHERE sha256 = '" + sha256 + "' ORDER BY host"
    until(lambda: lab.lab.rows(rows) == [("one",), ("two",)])
    assert sha256 == hashlib.sha256(data).hexdigest()


def test_the_log_of_a_job_is_read_at_every_host_while_it_grows_and_afterwards(lab):
    job = lab.submit(lab.one, lab.there.name, WAIT)
    seen = []
    for item in lab.one.client.stream("job.logs", job=job, follow=True):
        seen += [line["text"] for line in item.get("lines", ())]
        if "first" in seen and "second" not in seen:
            lab.there.shell(f"touch {GO}")
    assert [text for text in seen if text in ("first", "second")] == ["first", "second"]
    for farm in (lab.one, lab.two):
        tail = farm.client.call("job.log_tail", job=job)
        assert "second" in [line["text"] for line in tail["lines"]]


def test_a_bundle_is_added_at_one_host_for_both(lab):
    [bundle] = lab.one.client.call("bundle.list")["bundles"]
    folder = lab.one.folder / "state" / "bundles" / "objects" / bundle["hash"] / "files"
    lab.one.client.call("bundle.add", folder=str(folder), name="for-all", toolchain=bundle["toolchain"])

    def has_it():
        return (lab.two.folder / "state" / "bundles" / "names" / "for-all").exists()

    until(has_it)


def test_a_tuning_whose_host_is_killed_goes_on_at_the_other_with_the_trials_of_before(lab):
    model, trials = lab.one.client.put_artifact(dense_onnx(layers=2)), 60
    busy = lab.submit(lab.one, lab.here.name, WAIT)
    lab.until(busy, "running")
    spec = {"kind": "tune", "model": model, "name": "dense.onnx", "trials": trials, "cost_model": "random"}
    [row] = lab.one.client.call("job.submit", spec={**spec, "on": "android", "timeout_s": LIMIT_S})["jobs"]
    job = str(row["id"])
    kept = (
        f"SELECT host FROM attempt JOIN lease ON lease = lease.id WHERE attempt.job = '{job}' AND facts LIKE '%parts%'"
    )
    until(lambda: lab.lab.rows(kept))
    assert lab.lab.rows(kept) == [("two",)]
    lab.here.shell(f"touch {GO}")
    lab.until(busy, "done")
    lab.two.daemon.kill()
    lab.until(job, "done")
    shown = lab.one.client.call("job.show", job=job)
    assert [each["state"] for each in shown["attempts"]] == ["interrupted", "done"]
    assert shown["result"]["trials"] == trials
    assert shown["result"]["earlier_trials"] > 0
    assert sum(each["trials"] for each in shown["result"]["phones"]) == trials - failed_trials(shown["result"])
    lab.two.daemon.start().close()


def failed_trials(result):
    """Those that no phone has measured: they were not built."""
    return sum(each["failed"] for each in result["tasks"])
