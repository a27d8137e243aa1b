from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb import errors
from farm.adb.errors import classify, failure
from farm.common.errors import Fault
from tests.support.golden import golden

DATA = Path(__file__).parents[2] / "data" / "adb" / "errors"


def read(file):
    error = classify(file.read_text(), serial="ABC")
    return error and {"type": type(error).__name__, "message": error.message, "hint": error.hint}


@pytest.mark.parametrize(("file", "wanted"), golden(DATA, read))
def test_genuine_failures(file, wanted):
    assert read(file) == wanted
    if wanted:
        assert wanted["hint"]
        assert classify(file.read_text(), serial="ABC").evidence == file.read_text().strip()


def test_a_file_that_cannot_be_read_is_not_one_to_write_elsewhere():
    error = classify("open failed: No such file or directory", serial="ABC")
    assert type(error) is errors.PhonePathRefused
    assert str(error) == "Phone ABC does not give the file: No such file or directory."
    assert "ls -l" in error.hint


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("device 'nope' not found", errors.DeviceNotFound),
        ("no such device '1.2.3.4:1'", errors.DeviceNotFound),
        ("failed to connect to '127.0.0.1:1': Connection refused", errors.DeviceNotFound),
        ("failed to connect to '1.2.3.4:4567': Operation timed out", errors.DeviceNotFound),
        ("device still authorizing", errors.DeviceOffline),
        ("insufficient permissions for device: user in plugdev group; are", errors.DeviceNoPermissions),
        ("closed", errors.AdbLinkLost),
        ("remote write failed: No space left on device", errors.PhoneStorageFull),
        ("cannot bind listener: Address already in use", errors.AdbPortTaken),
        ("could not install *smartsocket* listener: Address already in use", errors.AdbPortTaken),
        ("unknown host service", errors.AdbFailed),
        ("", errors.AdbFailed),
    ],
)
def test_words_seen_from_servers(words, kind):
    assert type(failure(words)) is kind


def test_leaves_say_whose_fault_it_is():
    assert errors.DeviceOffline().fault is Fault.PHONE
    assert errors.AdbServerUnreachable().fault is errors.DeviceNoPermissions().fault is Fault.HOST
    assert str(errors.AdbTimeout()) == "The phone did not answer in time."


@given(st.text())
def test_a_refusal_in_any_words_is_one_error_with_evidence(text):
    error = failure(text)
    assert isinstance(error, errors.AdbError)
    assert error.evidence == text.strip()
