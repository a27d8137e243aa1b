"""A listener whose task has ended accepts no client and reports nothing: the daemon ends, to be started again."""

import asyncio

import pytest

from farm.config import AdbConfig, ControlConfig, FarmConfig, TvmConfig, WebConfig
from farm.daemon.daemon import Daemon
from tests.support.waiting import HANG_S, until


@pytest.mark.parametrize(
    "part",
    [
        "control socket worker.sock",
        "control socket control.sock",
        "control socket remote",
        "key check of the control socket",
        "web",
    ],
)
async def test_the_daemon_ends_with_an_error(tmp_path, part):
    config = FarmConfig(
        state_dir=tmp_path / "state", runtime_dir=tmp_path / "run", adb=AdbConfig(manage=False), tvm=TvmConfig(port=0),
        web=WebConfig(port=0), control=ControlConfig(listen="tcp://127.0.0.1:0"),
    )  # fmt: skip
    daemon = asyncio.create_task(Daemon(config, lambda _: config).run())

    def waits_for():
        """What the task of the listener waits for, once everything runs."""
        tasks = {task.get_name(): task for task in asyncio.all_tasks()}
        waited = getattr(tasks.get(part), "_fut_waiter", None) if "watchdog" in tasks else None
        return None if waited is None or waited.done() else waited

    await until(lambda: daemon.done() or waits_for())
    assert not daemon.done()
    waits_for().set_exception(OSError("the socket is gone"))
    with pytest.raises(OSError, match="the socket is gone"):
        await asyncio.wait_for(daemon, HANG_S)
