"""The harder actions carried out: a reboot is over when the boot id changed; what a failure says of the phone."""

import pytest

from farm.adb.errors import AdbLinkLost, AdbServerUnreachable, AdbTimeout
from farm.common.errors import Code, FarmError, PhoneError
from farm.devices import agent_work
from farm.devices.lifecycle import messages as m
from farm.devices.server.rpc_server import StuckProcessError
from farm.model.health import DeviceFault
from tests.support.errors import raises_code
from tests.support.fake_phone import FakeClient


@pytest.mark.looptime
async def test_a_reboot_is_over_when_another_boot_answers():
    phone, heard = FakeClient(["one\n", AdbLinkLost("down"), "", "two\n"]), []
    await agent_work.reboot(phone, "S1", "one", lambda: heard.append(True))
    assert (phone.rebooted, heard, phone.answer) == (["S1"], [True], ["two\n"])


@pytest.mark.looptime
async def test_a_phone_that_does_not_go_down_refused_to_reboot():
    with raises_code(Code.REBOOT_REFUSED):
        await agent_work.reboot(FakeClient("one"), "S1", "one", lambda: None)


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
def test_what_a_failure_says_of_the_phone(work, error, fault):
    event = agent_work.failed(work, error)
    assert (type(event), event.generation, event.reason, event.fault) == (m.WorkFailed, 1, error.message, fault)
