"""`--quiet-hub` on a whole farm: a bench waits for its neighbour, and others wait while it runs."""

import json
import os
import pwd
import socket

import pytest

from farm.client import Client
from farm.tvm_server import wire
from tests.support.raw import RawTracker, encode_message
from tests.support.whole_farm import Story, phones, until

PLACES = {"left": "1-4.1", "right": "1-4.2"}

pytestmark = pytest.mark.farm(named={"left": "oneplus-12", "right": "galaxy-s9"}, places=PLACES)


@pytest.fixture
def named(farm):
    return {phone.nickname: phone.name for phone in phones(farm)}


@pytest.fixture
def bench(farm, named, model):
    """Submits a bench on the left phone that wants its hub quiet; it is cancelled at the end."""
    jobs = []

    def submit(*how):
        options = ("--on", named["left"], "--quiet-hub", *how, "--detach", "--json")
        done = farm.farm("bench", str(model), *options)
        assert done.returncode == 0, done
        (job,) = json.loads(done.stdout)["jobs"]
        jobs.append(job["id"])
        return job["id"]

    yield submit
    for job in jobs:
        farm.farm("job", "cancel", job)


def test_it_waits_until_the_neighbour_is_given_back(farm, named, bench):
    story = Story(farm)
    with Client(farm.socket) as client, client.lease(on=named["right"]):
        job = bench("--repeat", "3")
        until(lambda: f"{named['right']} on the same hub is in use" in farm.farm("explain", "job", job).stdout)
    story.until("job.done", subject=job)
    story.order("lease.released", "lease.granted", "job.done")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may open a socket as somebody else")
async def test_while_it_runs_the_neighbour_is_for_nobody_else(farm, named, bench):
    story = Story(farm)
    job = bench("--repeat", "20000", "--number", "1000000")  # longer than any test runs
    story.until("lease.granted", device=named["left"])
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        sock = socket.socket()
    finally:
        os.seteuid(0)
    with sock:
        sock.connect(farm.tracker())
        sock.setblocking(False)
        other = RawTracker(sock)
        await other.send(wire.encode_magic())
        assert await other.event() == wire.TrackerHello()
        await other.send(encode_message(wire.TrackerRequest(named["right"], "", 1)))
        said = f"its hub is kept quiet for {pwd.getpwuid(0).pw_name}, who has {named['left']}"
        until(lambda: "nobody" in (shown := farm.farm("explain", "key", named["right"]).stdout) and said in shown)
        with Client(farm.socket) as client, client.lease(on=named["right"]):  # to whom the bench belongs
            assert farm.client.call("job.show", job=job)["job"]["state"] == "running"
        farm.client.call("job.cancel", job=job)
        await other.answer()
        story.until("lease.granted", device=named["right"], user="nobody")
