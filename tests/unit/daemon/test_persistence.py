"""What the daemon remembers is closed after everybody who still has something to tell."""

import asyncio
import contextlib
import logging

from farm.common.systemd import Notifier
from farm.config import load
from farm.control.callers import Caller, Role
from farm.daemon.persistence import open_persistence
from farm.daemon.problems import Problems
from farm.daemon.starting import Start
from farm.store.store import Store


async def test_the_log_warns_of_what_an_operator_may_have_to_mend(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folders = {"state_dir": str(tmp_path), "runtime_dir": str(tmp_path / "run")}
    config = load(None, environ={}, flags=folders)
    async with contextlib.AsyncExitStack() as stack:
        memory = await open_persistence(config, stack, Problems(config), Start(Notifier(), asyncio.Event()))
        memory.events.publish("config.refused", "daemon", by="SIGHUP", reason="a mistake")
    levels = {record.message.split()[0]: record.levelname for record in caplog.records}
    assert (levels["daemon.started"], levels["config.refused"]) == ("INFO", "WARNING")


async def test_what_a_part_does_while_it_ends_is_in_the_audit_log(tmp_path):
    folders = {"state_dir": str(tmp_path), "runtime_dir": str(tmp_path / "run")}
    config = load(None, environ={}, flags=folders)
    async with contextlib.AsyncExitStack() as stack:
        memory = await open_persistence(config, stack, Problems(config), Start(Notifier(), asyncio.Event()))
        # As dispatcher.stop is: begun later than the memory, so ended earlier. It ends the leases' adb.
        stack.callback(
            memory.audit.record_later, Caller("ann", Role.USER, "adb of lease-1"), "adb.shell", "pixel", "ok"
        )
    store = Store.open(tmp_path / "farm.db")
    try:
        assert [(row.user, row.kind, row.subject) for row in store.audit.page()] == [("ann", "adb.shell", "pixel")]
    finally:
        store.close()
