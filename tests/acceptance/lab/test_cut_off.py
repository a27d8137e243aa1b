"""A host whose network loses its packets, in one direction or both: it works on, and nothing is lost or ended twice."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

from benchmarks.lab_cut_off import CUT, OTHER, CutOffLab
from farm.common.errors import ExitCode, HostError
from tests.support import postgres
from tests.support.host_network import HostNetwork, Lost
from tests.support.needs import need
from tests.support.whole_farm import refused, until
from tests.support.whole_lab import WAIT

WAYS = {"from-it": (Lost.FROM_HOST,), "to-it": (Lost.TO_HOST,), "both-ways": tuple(Lost)}


@pytest.fixture(scope="module")
def lab(kernel, tmp_path_factory):
    need("g++", "mksh", "toybox")
    postgres.need()
    try:
        network = HostNetwork(CUT, OTHER)
    except HostError as error:
        pytest.skip(error.message)
    with closing(network), ExitStack() as stack:
        lab = CutOffLab(network, stack, kernel, tmp_path_factory.mktemp("judged"))
        yield lab
        assert lab.events("host.lost") == lab.events("host.back")
        assert lab.wrong() == {}


@pytest.mark.parametrize("lost", WAYS.values(), ids=list(WAYS))
def test_a_host_that_is_cut_off_works_on_and_its_job_ends_once(lab, lost):
    losses = lab.events("host.lost")
    with lab.session() as client:
        other = lab.submit(lab.elsewhere.name, WAIT)
        until(lambda: lab.attempts(other))
        job = lab.submit("android", WAIT)
        until(lambda: lab.attempts(job) == [(lab.left.name, "running")])
        lab.go(lab.elsewhere)
        lab.network.lose(CUT, *lost)
        until(lambda: lab.events("host.lost") > losses)
        until(lambda: lab.attempts(job) == [(lab.left.name, "failed"), (lab.elsewhere.name, "running")])
        refused(lab.other.farm("device", "reboot", lab.left.name), ExitCode.FAILED, f"host {CUT}", "is lost")
        until(lab.database_problems)
        lab.go(lab.elsewhere, lab.left)
        until(lambda: lab.attempts(job)[1:] == [(lab.elsewhere.name, "done")])
        held = {row["name"]: row["state"] for row in lab.cut.status()["devices"] if row["holder"]}
        assert lab.used.name in held
        lab.network.mend(CUT, *lost)
        until(lambda: lab.events("host.back") > losses)
        until(lambda: not lab.database_problems())
        after = lab.submit(lab.left.name)
        until(lambda: lab.attempts(after) == [(lab.left.name, "done")])
        client.go()
        rounds, wrong = client.hear()
        client.finish()
    assert rounds
    assert not wrong
    assert lab.attempts(job) == [(lab.left.name, "failed"), (lab.elsewhere.name, "done")]
