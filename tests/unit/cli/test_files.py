import pytest

from farm.cli.output import write_file
from farm.common.errors import UserError


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match="No such file or directory") as caught:
        write_file(tmp_path / "absent" / "screen.png", b"")
    assert caught.value.hint
    write_file(tmp_path / "screen.png", b"png")
    assert (tmp_path / "screen.png").read_bytes() == b"png"
