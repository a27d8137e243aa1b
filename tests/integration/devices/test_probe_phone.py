"""The probe on a virtual phone: mksh, toybox, a real RPC server, and the round that shows what it found."""

from farm.devices.fleet import FleetConfig
from farm.devices.health.probe.thermal import ProbeConfig
from farm.devices.health.probe_round import probe, read_conditions
from farm.model.device import Life
from farm.model.health import SensorGroup
from tests.integration.devices.conftest import ADOPT_ALL
from tests.support.needs import needs_namespaces


@needs_namespaces
async def test_a_whole_probe_of_a_phone(rig):
    async with rig(config=FleetConfig(ADOPT_ALL, probe=ProbeConfig(every_s=0.2))) as r:
        view = await r.until(Life.READY)
        health, _ = await probe(r.client, view.serial)
        # what this profile has not, or the shell may not read
        assert set(health.missing) <= {"supply", "kernel", "gpu"}
        assert health.boot_id
        assert health.uptime_s is not None
        assert health.memory_available_bytes
        assert health.data_free_bytes
        assert {SensorGroup.CPU, SensorGroup.BATTERY} <= {each.group for each in health.temperatures}
        assert max(cluster.max_khz or 0 for cluster in health.cpu) > 1_000_000
        pid = int(await r.server_pid(view.serial))
        assert [each.name for each in health.server if each.pid == pid] == ["tvm_rpc"]
        assert len(health.server) >= 2  # its supervisor beside it
        moment = await read_conditions(r.client, view.serial)
        assert moment["clock_hz"] == 1000 * max(cluster.max_khz or 0 for cluster in health.cpu)
        r.phones.battery("one", 9)
        shown = await r.until_view(lambda v: v.battery_percent == 9)
        assert shown.health is not None
        assert shown.health.boot_id == health.boot_id
