"""The page in a lab: its hosts, what runs at other hosts, and a phone whose host is away."""

import pytest

from farm.common.errors import HostUnreachableError
from farm.control.callers import Role
from tests.support.web_desk import Desk, lab_desk, page, status, text_of
from tests.unit.web.test_job_pages import row


@pytest.fixture
def desk():
    return lab_desk(row(id="bench-1", state="running", on="far", progress=None))


async def test_the_page_of_hosts_tells_who_is_away_what_runs_and_what_to_do(desk):
    async with page(desk, lab=True) as opened:
        shown = text_of((await opened.client.get("/hosts")).text)
    assert "lab3 lost 1h 2m ago" in shown
    assert "start its daemon" in shown
    assert "on far" in shown
    assert "this host" in shown


async def test_an_operator_drains_a_host(desk):
    async with page(desk, lab=True) as opened:
        csrf = await opened.sign_in(role=Role.OPERATOR)
        answer = await opened.client.post("/hosts/lab2/drain", data={"csrf": csrf})
    assert answer.headers["location"] == "/hosts"
    assert ("host.drain", {"host": "lab2", "on": True}) in [(kind, fields) for _, kind, fields in desk.asked]


async def test_jobs_and_phones_of_other_hosts_show_steps_and_temperatures_of_the_host_that_has_them(desk):
    async with page(desk, lab=True) as opened:
        jobs = text_of((await opened.client.get("/jobs")).text)
        fleet = (await opened.client.get("/")).text
    assert "timing" in jobs or "3 of 9" in jobs
    assert "30.0 to 40.0" in fleet
    asked = [fields["host"] for _, kind, fields in desk.asked if kind == "job.steps"]
    assert asked == ["lab2"]  # lab3 is away


async def test_a_host_that_does_not_answer_is_left_out(desk):
    def silent(host):
        raise HostUnreachableError("host lab2 cannot be reached")

    desk.answers["job.steps"] = silent
    async with page(desk, lab=True) as opened:
        assert (await opened.client.get("/jobs")).status_code == 200


async def test_the_page_of_a_lost_hosts_phone_shows_its_last_facts(desk):
    async with page(desk, lab=True) as opened:
        answer = await opened.client.get("/devices/away")
        shown = text_of(answer.text)
        nobody = await opened.client.get("/devices/unknown")
    assert answer.status_code == 200
    assert "Last known facts: host lab3, which has away, is lost" in shown
    assert "31.5 °C" in shown
    assert "bench-1" in shown
    assert nobody.status_code == 503


async def test_a_host_alone_has_no_page_of_hosts_in_its_navigation():
    async with page(Desk(status=status())) as opened:
        assert 'href="/hosts"' not in (await opened.client.get("/")).text
