"""Errors of the operating system name the file, and what to do."""

import pytest

from farm.common.errors import HostError
from farm.common.os_errors import name_unreadable_file


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(HostError, match=f"cannot read {tmp_path}: Is a directory") as caught, name_unreadable_file():
        tmp_path.read_bytes()
    assert caught.value.hint
