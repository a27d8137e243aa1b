"""The recovery ladder on virtual phones behind a real adb server: what is done, in which order, with what outcome."""

from __future__ import annotations

from farm.core.device import Life
from farm.core.events import EventLog
from farm.core.recovery import Rung
from farm.core.sensors import ProbeConfig
from farm.fleet.care import CareConfig
from farm.fleet.fleet import FleetConfig
from farm.fleet.recovery_log import RecoveryLog
from farm.fleet.rungs import boot_id
from tests.integration.fleet.conftest import ADOPT_ALL

BIN = "/data/local/tmp/farm/bin"
UNDYING = f"echo 'echo \"failed processes do not die: 7(state D) (stuck in a driver)\"' >{BIN}/reap.sh"


async def test_a_process_that_survives_sigkill_costs_a_reboot_and_the_phone_is_back(rig) -> None:
    async with rig() as r:
        view = await r.until(Life.READY)
        boot = await boot_id(r.client, view.serial)
        mark = r.mark()
        await r.shell(view.serial, UNDYING)
        r.fleet.report_broken_session(view.name, "cut: longer than 10 s")
        assert r.fleet.view(view.name).life is Life.RECOVERING
        await r.until(Life.READY)
        assert r.rungs(mark) == ["reap", "failed", "reboot", "mended"]
        assert await boot_id(r.client, view.serial) not in ("", boot)


async def test_without_reboots_left_such_a_phone_is_a_persons_business_and_stays_so(rig) -> None:
    config = FleetConfig(ADOPT_ALL, care=CareConfig(per_day={Rung.REBOOT: 0}))
    async with rig(config=config) as r:
        view = await r.until(Life.READY)
        await r.shell(view.serial, UNDYING)
        r.fleet.report_broken_session(view.name, "cut: longer than 10 s")
        kept = await r.until(Life.QUARANTINED)
        assert "reboot: its 0 in 24 h are used up" in kept.reason
        r.phones.unplug("one")
        gone = await r.until(Life.GONE)
        assert gone.reason.startswith("quarantined: ")
        r.phones.plug("one")
        again = await r.until(Life.QUARANTINED)
        assert again.reason == kept.reason
        # What the next daemon would know.
        remembered = RecoveryLog(EventLog(), r.store.recoveries).remembered(view.serial, r.fleet.care.state(view.name))
        assert remembered.quarantine == r.fleet.care.state(view.name).quarantine


async def test_a_phone_that_answers_nothing_is_reconnected(rig) -> None:
    config = FleetConfig(ADOPT_ALL, ProbeConfig(every_s=0.2), probe_timeout_s=1.0)
    async with rig(config=config) as r:
        view = await r.until(Life.READY)
        mark = r.mark()
        r.phones.offline("one", "silent")
        await r.until_view(lambda _: "reconnect" in r.rungs(mark))
        assert "reboot" not in r.rungs(mark)
        r.phones.plug("one")
        await r.until(Life.READY)
        assert r.fleet.view(view.name).leasable
