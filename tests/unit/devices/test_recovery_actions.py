"""The harder actions carried out: a reboot is over when the boot id changed; what a failure says of the phone."""

from __future__ import annotations

from typing import Any, cast

import pytest

from farm.adb.client import AdbClient
from farm.adb.errors import AdbLinkLost, AdbServerUnreachable, AdbTimeout
from farm.adb.shell import ShellResult
from farm.common.errors import Code, FarmError, PhoneError
from farm.devices import agent_work
from farm.devices.lifecycle import messages as m
from farm.devices.server.rpc_server import StuckProcessError
from farm.model.health import DeviceFault
from tests.support.errors import raises_code


class Phone:
    """Answers with boot ids, or fails."""

    def __init__(self, *boots: str | Exception) -> None:
        self.boots = list(boots)
        self.asked: list[str] = []

    async def shell(self, serial: str, command: str, **_: object) -> ShellResult:
        boot = self.boots.pop(0) if len(self.boots) > 1 else self.boots[0]
        if isinstance(boot, Exception):
            raise boot
        return ShellResult(boot.encode(), b"", 0)

    async def reboot(self, serial: str) -> None:
        self.asked.append(serial)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_work, "LOOK_EVERY_S", 0.001)


async def test_a_reboot_is_over_when_another_boot_answers() -> None:
    phone, heard = Phone("one\n", AdbLinkLost("down"), "", "two\n"), list[bool]()
    await agent_work.reboot(cast(AdbClient, phone), "S1", "one", lambda: heard.append(True))
    assert (phone.asked, heard, phone.boots) == (["S1"], [True], ["two\n"])


async def test_a_phone_that_does_not_go_down_refused_to_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_work, "REBOOT_DOWN_S", 0.02)
    with raises_code(Code.REBOOT_REFUSED, match="did not go down"):
        await agent_work.reboot(cast(AdbClient, Phone("one")), "S1", "one", lambda: None)


@pytest.mark.parametrize(
    ("work", "error", "fault"),
    [
        (m.Reap(1), StuckProcessError("pid 7"), DeviceFault.STUCK),
        (m.AdoptServer(1), StuckProcessError("pid 7"), DeviceFault.STUCK),
        (m.Identify(1), AdbTimeout("silent"), DeviceFault.MUTE),
        (m.Provision(1), AdbLinkLost("gone"), None),
        (m.Provision(1), AdbServerUnreachable("no adb"), None),
        (m.StartServer(1), PhoneError("no Bind to", Code.SERVER_NOT_STARTED), DeviceFault.START),
        (m.RunCheck(1), PhoneError("the session failed"), DeviceFault.CHECK),
        (m.RunCheck(1), FarmError("a bug"), None),
    ],
)
def test_what_a_failure_says_of_the_phone(work: Any, error: FarmError, fault: DeviceFault | None) -> None:
    event = agent_work.failed(work, error)
    assert isinstance(event, m.WorkFailed)
    assert (event.generation, event.reason, event.fault) == (1, error.message, fault)
