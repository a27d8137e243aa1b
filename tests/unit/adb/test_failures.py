from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb import errors
from farm.adb.errors import classify, failure
from farm.common.errors import Fault

DATA = Path(__file__).parents[2] / "data" / "adb" / "errors"
EXPECTED: dict[str, type[errors.AdbError] | None] = {
    "dadb-device-unauthorized": errors.DeviceUnauthorized,
    "device-offline-get-serialno": errors.DeviceOffline,
    "forward-cannot-bind-cordova": errors.AdbPortTaken,
    "forward-winsock-10013": errors.AdbPortTaken,
    "protocol-fault-status-success": errors.AdbServerUnreachable,
    "push-error-then-1-file-pushed": errors.PhonePathRefused,
    "push-is-a-directory-utf8": errors.PhonePathRefused,
    "push-mixed-ok-and-no-space": errors.PhoneStorageFull,
    "push-no-space-ubports": errors.PhoneStorageFull,
    "push-permission-denied-redmi-note7": errors.PhonePathRefused,
    "push-read-only-1.0.32": errors.PhonePathRefused,
    "push-secure-mkdirs": errors.PhonePathRefused,
    "push-stat-permission-denied": errors.PhonePathRefused,
    "push-success-lines-multi": None,
    "server-out-of-date-bind-5037": errors.AdbVersionClash,
    "smartsocket-listener-ack-log": errors.AdbVersionClash,
    "unauthorized-install-streamed": errors.DeviceUnauthorized,
    "unauthorized-shell": errors.DeviceUnauthorized,
    "unauthorized-version-mismatch-adb-prefix": errors.DeviceUnauthorized,
}


def test_every_capture_is_listed_here() -> None:
    assert {path.stem for path in DATA.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_genuine_failures(name: str) -> None:
    text = (DATA / f"{name}.txt").read_text()
    error = classify(text, serial="ABC")
    expected = EXPECTED[name]
    if expected is None:
        assert error is None
        return
    assert type(error) is expected
    assert error.evidence == text.strip()
    assert "\n" not in error.message
    assert error.hint


def test_the_reason_of_a_refused_path_is_in_the_message() -> None:
    error = classify((DATA / "push-stat-permission-denied.txt").read_text(), serial="ABC")
    assert str(error) == "Phone ABC refuses the path: Permission denied."


def test_a_file_that_cannot_be_read_is_not_one_to_write_elsewhere() -> None:
    error = classify("open failed: No such file or directory", serial="ABC")
    assert type(error) is errors.PhonePathRefused
    assert str(error) == "Phone ABC does not give the file: No such file or directory."
    assert "ls -l" in error.hint


def test_a_version_clash() -> None:
    error = classify((DATA / "smartsocket-listener-ack-log.txt").read_text())
    assert isinstance(error, errors.AdbVersionClash)
    assert "(41) doesn't match this client (39)" in error.evidence


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("device 'nope' not found", errors.DeviceNotFound),
        ("no such device '1.2.3.4:1'", errors.DeviceNotFound),
        ("failed to connect to '127.0.0.1:1': Connection refused", errors.DeviceNotFound),
        ("failed to connect to '1.2.3.4:4567': Operation timed out", errors.DeviceNotFound),
        ("device still authorizing", errors.DeviceOffline),
        (
            "insufficient permissions for device: user in plugdev group; are your udev rules wrong?",
            errors.DeviceNoPermissions,
        ),
        ("closed", errors.AdbLinkLost),
        ("remote write failed: No space left on device", errors.PhoneStorageFull),
        ("cannot bind listener: Address already in use", errors.AdbPortTaken),
        ("could not install *smartsocket* listener: Address already in use", errors.AdbPortTaken),
        ("unknown host service", errors.AdbFailed),
        ("", errors.AdbFailed),
    ],
)
def test_words_seen_from_servers(words: str, kind: type[errors.AdbError]) -> None:
    assert type(failure(words)) is kind


def test_leaves_say_whose_fault_it_is() -> None:
    assert errors.DeviceOffline().fault is Fault.PHONE
    assert errors.AdbServerUnreachable().fault is Fault.HOST
    assert errors.DeviceNoPermissions().fault is Fault.HOST
    assert str(errors.AdbTimeout()) == "The phone did not answer in time."


@given(st.text())
def test_a_refusal_in_any_words_is_one_error_with_evidence(text: str) -> None:
    error = failure(text)
    assert isinstance(error, errors.AdbError)
    assert error.evidence == text.strip()
