"""The tune worker's build server: a fork of the worker, which builds, and of which nothing survives the worker."""

import asyncio
import os
import signal

import psutil
import pytest
import pytest_asyncio

from farm.common.errors import Code
from tests.support.errors import raises_code

pytest.importorskip("tvm")

from farm.jobs.attempt import Task
from tests.integration.test_workers import Host, gone, lab_in

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory):
    async with lab_in(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


async def built(lab, kind, host):
    lab.count += 1
    task = Task(f"try-{lab.count}", 1, "tests.integration.building", {"kind": kind}, 60.0)
    return await lab.supervisor.run("default", task, host)


async def test_it_is_a_fork_of_the_worker_and_builds(lab):
    found = await built(lab, "add", Host())
    assert found["parent"] == found["worker"]
    assert found["same_program"]  # executed no other one: TVM is not imported a second time
    assert found["threads"] == [1]
    assert found["built"]


async def test_nothing_survives_a_worker_that_is_killed_while_it_builds(lab):
    host = Host()
    running = asyncio.create_task(built(lab, "endless build", host))
    step, told = await host.heard.get()
    assert step == "building"
    assert len(told["family"]) >= 2  # the server and the build
    os.kill(told["worker"], signal.SIGKILL)
    with raises_code(Code.WORKER_DIED):
        await running
    for pid in told["family"]:
        await gone(pid)
    assert not any(psutil.pid_exists(pid) for pid in told["family"])
