"""Commands that choose phones by --on take the phone of ANDROID_SERIAL when it is left out."""

import pytest

from tests.support.waiting import HANG_S


@pytest.mark.parametrize(
    ("options", "serial", "on"),
    [
        ((), "S1", "pixel"),
        (("--on", "android"), "S1", "android"),
        (("--on", "nord"), "S9", "nord"),
        ((), "pixel", "pixel"),
    ],
)
def test_the_phone_of_the_environment_is_leased_unless_on_is_given(daemon, typed, monkeypatch, options, serial, on):
    monkeypatch.setenv("ANDROID_SERIAL", serial)
    process = typed("shell", "--detach", *options, "--", "id")
    out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, err) == (0, ""), out
    assert [each["spec"]["on"] for each in daemon.submissions] == [on]


@pytest.mark.parametrize(
    ("serial", "code", "said"),
    [
        ("S9", 3, "error: ANDROID_SERIAL=S9: the farm has no phone of that serial or name"),
        ("", 2, "error: missing option '--on', and ANDROID_SERIAL is not set"),
    ],
)
def test_without_such_a_phone_nothing_is_submitted(daemon, typed, monkeypatch, serial, code, said):
    monkeypatch.setenv("ANDROID_SERIAL", serial)
    process = typed("shell", "--", "id")
    _, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, said in err, daemon.submissions) == (code, True, []), err


@pytest.mark.parametrize(("holder", "told"), [("ann", True), ("", False)])
def test_the_phone_of_ones_own_lease_is_told(daemon, typed, monkeypatch, holder, told):
    daemon.holder = holder
    for name, value in {"ANDROID_SERIAL": "S1", "FARM_DEVICE": "pixel", "FARM_LEASE": "lease-1-2"}.items():
        monkeypatch.setenv(name, value)
    _, err = typed("shell", "--detach", "--", "id").communicate(timeout=HANG_S)
    assert ("farm lease release lease-1-2" in err) == told, err
