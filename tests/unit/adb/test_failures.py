from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb import errors
from farm.adb.connection import abridged
from farm.adb.errors import classify, failure
from farm.common.errors import Fault
from tests.support.golden import golden, rows

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


@pytest.mark.parametrize(("words", "kind"), rows(__file__, "failures"))
def test_words_seen_from_servers(words, kind):
    assert type(failure(words)).__name__ == kind


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("T=secret run", "T=... run"),
        ("T='two words' U=\"it's\" run", "T=... U=... run"),
        ("T='two'\\''s' run", "T=... run"),
        ("T='cut off", "T=..."),
    ],
)
def test_a_command_is_quoted_without_the_values_of_its_variables(command, shown):
    assert abridged(command) == shown


def test_leaves_say_whose_fault_it_is():
    assert errors.DeviceOffline().fault is Fault.PHONE
    assert errors.AdbServerUnreachable().fault is errors.DeviceNoPermissions().fault is Fault.HOST
    assert str(errors.AdbTimeout()) == "The phone did not answer in time."


@given(st.text())
def test_a_refusal_in_any_words_is_one_error_with_evidence(text):
    error = failure(text)
    assert isinstance(error, errors.AdbError)
    assert error.evidence == text.strip()
