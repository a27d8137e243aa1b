"""`farm head` as a command: its /metrics, and its configuration read again while it decides."""

import asyncio
import re
import signal
import urllib.request
from contextlib import contextmanager

import pytest

from tests.support import postgres
from tests.support.lab_host import LabHost
from tests.support.waiting import until
from tests.support.whole_lab import HeadCommand

QUOTA = "[user.ann]\ndevices = {}\n"


@pytest.fixture(scope="module")
def url():
    postgres.need()
    with postgres.running_server() as server:
        yield postgres.new_database(server)


@contextmanager
def a_head(folder, url, number, config=""):
    head = HeadCommand(folder, url, number, config)
    try:
        yield head
        assert "Traceback" not in head.end()
    finally:
        head.kill()


async def metrics_of(head):
    """The samples of its /metrics."""
    await until(lambda: "/metrics of this head" in head.log.read_text(), patience_s=60)
    [address] = re.findall(r"/metrics of this head: (\S+)", head.log.read_text())
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(address).read().decode())
    return dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))


async def test_a_head_shows_its_queue_and_reads_its_configuration_again(url, tmp_path):
    with a_head(tmp_path, url, 1, QUOTA.format(1)) as head:
        await until(lambda: head.terms, patience_s=60)
        host = LabHost(url, "one", "a", "b")
        await host.begin()
        try:
            async with asyncio.timeout(60):
                first, second = await host.ask(), await host.ask()
                await first
            waiting = 'farm_requests_waiting{class="interactive"}'
            shown = await metrics_of(head)
            assert (shown[waiting], shown["farm_lab_head_decides"], shown["farm_store_writable"]) == ("1.0",) * 3
            assert shown['farm_time_to_device_seconds_count{class="interactive",source="tvm"}'] == "1.0"
            assert not any(each.startswith(("farm_devices", "farm_adb", "farm_gate")) for each in shown)

            config = head.log.with_suffix(".toml")
            good = config.read_text()
            config.write_text("[quota]\ndevices = -1\n")
            head.process.send_signal(signal.SIGHUP)
            await until(lambda: "the old one stays in force" in head.log.read_text(), patience_s=60)
            assert not second.done()
            config.write_text(good.replace(QUOTA.format(1), QUOTA.format(2)))
            head.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(60):
                await second
            assert "in force now: user.ann.devices" in head.log.read_text()
            assert (await metrics_of(head))[waiting] == "0.0"
        finally:
            await host.close()
        with a_head(tmp_path, url, 2) as standby:
            shown = await metrics_of(standby)
            assert shown["farm_lab_head_decides"] == "0.0"
            assert waiting not in shown
            waits = "this head waits for the term of the head before it"
            await until(lambda: waits in standby.log.read_text(), patience_s=60)
