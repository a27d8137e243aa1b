"""What a changed configuration changes at once, what waits, and that a wrong one changes nothing."""

import asyncio
import contextlib
import logging
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from farm.common import tasks
from farm.common.durations import BackOff
from farm.common.errors import UserError
from farm.common.events import EventLog
from farm.common.systemd import Notifier
from farm.config import ConfigError, load
from farm.control.callers import Role
from farm.daemon.head import HeadService
from farm.daemon.reload import Reloader, changes, for_head, plan
from farm.daemon.shared_config import SharedConfig
from farm.store.lab_table import SharedConfigRecord
from farm.store.writer import StoreWriteError
from farm.web import guard
from tests.support.verbs import ask
from tests.support.waiting import HANG_S


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
    assert for_head(decided, ("quota",)) == []  # the head reads the lab's configuration too
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


class LabStore:
    """A database on a server with the lab's configuration."""

    server, now = "there", lambda self: None

    def __init__(self):
        self.record, self.away = SharedConfigRecord(), False
        self.lab = SimpleNamespace(config=lambda: self.record, save_config=self.save)

    async def in_thread(self, read):
        if self.away:
            raise StoreWriteError("away")
        return read()

    async def save(self, record):
        self.record = record


ALONE = SimpleNamespace(server=None)  # the store of a host in no lab


class Daemon:
    """A reloader whose file the test writes, and one part that listens."""

    def __init__(self, tmp_path, store=ALONE):
        self.file = tmp_path / "farm.toml"
        self.file.touch()
        self.events, self.manager, self.heard, self.outcomes = EventLog(), Manager(), [], []
        self.before = self.load()
        self.shared = SharedConfig(store)
        self.reloader = Reloader(self.before, self.load, self.shared, self.events, self.manager, self.outcomes.append)
        self.reloader.parts.append(self.heard.append)

    def load(self, lab=""):
        return load(self.file, environ={}, lab=lab)

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


async def test_a_lab_sets_quotas_for_all_its_hosts(tmp_path):
    store = LabStore()
    here, there = Daemon(tmp_path, store), Daemon(tmp_path, store)
    here.file.write_text("[quota]\ndevices = 1\n")
    answer = await ask(here.reloader._set_lab_config, role=Role.OPERATOR, text="[quota]\ndevices = 3\n")
    assert answer["applied"] == ["quota.devices"]
    assert answer["notes"] == ["quota: set for all hosts, not by this host's file (farm lab config)"]
    assert (await ask(there.reloader._lab_config))["by"] == "ann"
    for _ in range(2):  # read again only after a change
        await there.reloader.follow_lab()
    assert [config.quota.devices for config in (*here.heard, *there.heard)] == [3, 3]
    assert there.told()[1]["by"] == "the lab"


async def test_a_wrong_configuration_of_the_lab_is_refused_and_one_of_another_release_is_done_without(tmp_path):
    store = LabStore()
    daemon = Daemon(tmp_path, store)
    with pytest.raises(ConfigError, match="devises"):
        await ask(daemon.reloader._set_lab_config, role=Role.OPERATOR, text="[quota]\ndevises = 3\n")
    assert store.record.text == ""
    store.record = SharedConfigRecord("[quota]\nlater = 3\n")
    daemon.file.write_text("[quota]\ndevices = 1\n")
    await daemon.reloader.follow_lab()
    assert [config.quota.devices for config in daemon.heard] == [1]
    (problem,) = daemon.shared.problems()
    assert "the lab's configuration is not used here" in problem
    store.record = SharedConfigRecord("[quota]\ndevices = 4\n")
    await daemon.reloader.follow_lab()
    assert daemon.heard[-1].quota.devices == 4
    assert not [*daemon.shared.problems()]


async def test_while_the_database_is_away_the_labs_configuration_is_as_it_was(tmp_path):
    store = LabStore()
    daemon = Daemon(tmp_path, store)
    store.record = SharedConfigRecord("[quota]\ndevices = 4\n")
    await daemon.reloader.follow_lab()
    store.away = True
    await daemon.reloader.follow_lab()
    await daemon.reloader.reload("anna")
    assert daemon.heard[-1].quota.devices == 4


async def test_a_host_of_no_lab_says_where_its_keys_are(daemon):
    for verb, fields in ((daemon.reloader._lab_config, {}), (daemon.reloader._set_lab_config, {"text": "[quota"})):
        with pytest.raises(UserError, match="in no lab"):
            await ask(verb, role=Role.OPERATOR, **fields)


async def test_a_mistake_in_a_heads_file_keeps_no_lab_without_a_head(daemon, caplog):
    head = HeadService(daemon.before, daemon.load)
    daemon.file.write_text("wrong")
    await head._begin_term(LabStore())
    assert "the configuration is refused, the old one stays in force" in caplog.text
    assert head._config is daemon.before


async def test_no_task_of_a_heads_process_ends_by_an_error(daemon, numbers):
    numbers(tasks, BEGIN_AGAIN=BackOff(0.0, 0.0))
    head = HeadService(replace(daemon.before, web=replace(daemon.before.web, enabled=False)), daemon.load)
    begun, often = [], asyncio.Event()

    async def fail():
        begun.append("again")
        if len(begun) > 2:
            often.set()
        raise RuntimeError("a bug")

    async def decide(_):
        await often.wait()

    head._follow_lab, head._head = fail, SimpleNamespace(run=decide)
    await asyncio.wait_for(head.run(), HANG_S)


async def test_metrics_of_a_head_are_guarded_and_paced_as_those_of_a_host(daemon, numbers, caplog):
    caplog.set_level(logging.INFO, "farm")
    head = HeadService(replace(daemon.before, web=replace(daemon.before.web, head_port=0)), daemon.load)
    async with contextlib.AsyncExitStack() as stack, httpx.AsyncClient() as client:
        head._open_metrics(stack)
        url = caplog.messages[-1].rpartition(" ")[2]
        assert "farm_lab_head_decides 0" in (await client.get(url)).text
        assert (await client.get(url, headers={"host": "elsewhere"})).status_code == 421
        numbers(guard, MAX_AT_ONCE=0)
        assert (await client.get(url)).status_code == 429
