"""What a changed configuration changes at once, what waits, and that a wrong one changes nothing."""

from dataclasses import replace

import pytest

from farm.common.events import EventLog
from farm.common.systemd import Notifier
from farm.config import ConfigError, load
from farm.daemon.reload import Reloader, changes, for_head, plan


def config(tmp_path, text=""):
    file = tmp_path / "farm.toml"
    file.write_text(text)
    return load(file, environ={}, flags={"state_dir": "/s", "runtime_dir": "/r"})


LIVE = {
    "aliases.fast": '[aliases]\nfast = "soc=sm8550"',
    "heat.bench.skin_c": "[heat.bench]\nskin_c = 33.0",
    "gates.tvm_class.mine": '[gates.tvm_class]\nmine = "bench"',
    "probe.every_s": "[probe]\nevery_s = 20.0",
    "health.check_every_h": "[health]\ncheck_every_h = 1.0",
    "battery.low_percent": "[battery]\nlow_percent = 35",
    "quiesce.restore_after_s": "[quiesce]\nrestore_after_s = 100.0",
    "recovery.reboots_per_day": "[recovery]\nreboots_per_day = 1",
    "adopt": '[[adopt]]\nmatch = "virtual=yes"',
    "quota.devices": "[quota]\ndevices = 3",
    "user.anna": "[user.anna]\nweight = 2.0",
    "lease.unused_s": "[lease]\nunused_s = 9.0",
    "lease.idle_s": "[lease]\nidle_s = 9.0",
    "store.keep_days": "[store]\nkeep_days = 3.0",
    "store.max_mb": "[store]\nmax_mb = 300",
    "artifacts.budget_gb": "[artifacts]\nbudget_gb = 3.0",
    "tvm.advertise.10.0.0.0/8": '[tvm.advertise]\n"10.0.0.0/8" = "10.0.0.1"',
    "power.meter.pixel": '[power.meter]\npixel = ["ina219"]',
    "tvm.external.allow": '[tvm.external]\nallow = ["10.0.0.0/8"]',
}
RESTART = {
    "tvm.port": "[tvm]\nport = 9999",
    "tvm.gate": '[tvm]\ngate = "/run/g.sock"',
    "adb.usb": "[adb]\nusb = false",
    "jobs.workers": "[jobs]\nworkers = 2",
    "store.url": '[store]\nurl = "postgresql+psycopg://x"\n[lab]\nhost = "a"\nhead = "apart"',
    "power.uhubctl": '[power]\nuhubctl = "/opt/uhubctl"',
    "toolchain.second": "[toolchain.default]\n[toolchain.second]",
}


@pytest.mark.parametrize("key", LIVE)
def test_in_force_at_once(key, tmp_path):
    before, told = config(tmp_path), config(tmp_path, LIVE[key])
    decided = plan(before, told)
    assert decided.applied == (key,)
    assert decided.restart == ()
    assert decided.effective == told


@pytest.mark.parametrize("key", RESTART)
def test_after_a_restart_and_until_then_as_it_was(key, tmp_path):
    before, told = config(tmp_path), config(tmp_path, RESTART[key])
    decided = plan(before, told)
    assert key in decided.restart
    assert decided.applied == ()
    assert decided.effective == before


def test_limits_of_users_are_read_by_a_head_apart_too(tmp_path):
    lab = '[store]\nurl = "postgresql://db/farm"\n[lab]\nhost = "one"\nhead = "apart"\n'
    changed = "[quota]\ndevices = 3\n[lease]\nidle_s = 9.0\n"
    decided = plan(config(tmp_path, lab), config(tmp_path, lab + changed))
    assert for_head(decided) == [
        "quota.devices: the head goes by its own host's file; there: systemctl reload farm-head"
    ]
    assert for_head(plan(config(tmp_path), config(tmp_path, changed))) == []


def test_what_waits_is_named_until_the_restart(tmp_path):
    before, told = config(tmp_path), config(tmp_path, "[jobs]\nworkers = 2\n[lease]\nidle_s = 9.0")
    first = plan(before, told)
    assert (first.applied, first.restart) == (("lease.idle_s",), ("jobs.workers",))
    again = plan(first.effective, told)
    assert (again.applied, again.restart) == ((), ("jobs.workers",))


def test_changes_name_the_innermost_key():
    assert list(changes({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3, "d": 4}})) == ["a.c", "a.d"]
    assert list(changes((1, 2), (1, 3), "x")) == ["x"]


class Manager(Notifier):
    def __init__(self):
        super().__init__()
        self.said = []
        self.reloading = lambda: self.said.append("reloading")
        self.ready = lambda _status: self.said.append("ready")


class Daemon:
    """A reloader whose file the test writes, and one part that listens."""

    def __init__(self, tmp_path):
        self.file = tmp_path / "farm.toml"
        self.file.touch()
        self.events, self.manager, self.heard, self.outcomes = EventLog(), Manager(), [], []
        self.before = self.load()
        self.reloader = Reloader(self.before, self.load, self.events, self.manager, self.outcomes.append)
        self.reloader.parts.append(self.heard.append)

    def load(self):
        return load(self.file, environ={})

    async def signalled(self, text):
        self.file.write_text(text)
        self.reloader.signalled()
        await self.reloader._signalled.end(60.0)
        return self.told()[0]

    def told(self):
        event = self.events.since()[-1]
        return event.kind, event.data


@pytest.fixture
def daemon(tmp_path):
    return Daemon(tmp_path)


async def test_parts_hear_of_what_holds_now_and_people_who_did_it(daemon):
    daemon.file.write_text("[lease]\nidle_s = 9.0\n[jobs]\nworkers = 2")
    await daemon.reloader.reload("anna")
    expected = replace(daemon.before, lease=replace(daemon.before.lease, idle_s=9.0))
    assert daemon.heard == [expected]
    assert daemon.reloader.config == expected
    told = {"by": "anna", "applied": ["lease.idle_s"], "restart": ["jobs.workers"]}
    assert daemon.told() == ("config.reloaded", told)
    assert daemon.manager.said == ["reloading", "ready"]


@pytest.mark.parametrize("wrong", ["[lease]\nidle_s = -1.0", "[leese]\n", "no toml", "[lease]\nidle_s = 'long'"])
async def test_a_wrong_one_changes_nothing(daemon, wrong):
    daemon.file.write_text("[quota]\ndevices = 1\n" + wrong)
    with pytest.raises(ConfigError) as refused:
        await daemon.reloader.reload("anna")
    assert daemon.heard == []
    assert daemon.reloader.config is daemon.before
    kind, data = daemon.told()
    assert (kind, data["by"], data["reason"]) == ("config.refused", "anna", refused.value.message)
    assert daemon.manager.said == ["reloading", "ready"]  # systemd must not wait forever


async def test_a_signal_with_a_wrong_file_is_told_and_survived(daemon):
    assert await daemon.signalled("wrong") == "config.refused"
    assert await daemon.signalled("[quota]\ndevices = 1\n") == "config.reloaded"
    assert daemon.outcomes == [ConfigError.code, "ok"]  # for the audit log


async def test_what_one_part_refuses_holds_for_none(daemon, caplog):
    def refuse(config):
        if config is not daemon.before:
            raise ZeroDivisionError

    later = []
    daemon.reloader.parts += [refuse, later.append]
    await daemon.signalled("[quota]\ndevices = 1\n")
    assert [config is daemon.before for config in daemon.heard] == [False, True]
    assert later == []
    assert daemon.reloader.config is daemon.before
    kind, data = daemon.told()
    assert (kind, data["reason"]) == ("config.refused", "a mistake in farm: ZeroDivisionError")
    assert data["by"] == "SIGHUP"
    assert daemon.outcomes == ["failed"]
    assert "ZeroDivisionError" in caplog.text  # with its trace, for whoever repairs it
    assert daemon.manager.said == ["reloading", "ready"]
