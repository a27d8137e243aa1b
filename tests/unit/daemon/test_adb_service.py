"""What farm-adb.service runs, up to the point where it becomes adb."""

import pytest

from farm.daemon import adb_service


class BecameAdbError(Exception):
    """Instead of execve."""


@pytest.mark.parametrize("wrong", ["[quota]\ndevises = 1", "[adb", "[adb]\nusb = 7"])
def test_a_configuration_that_is_wrong_keeps_no_adb_server_down(wrong, tmp_path, monkeypatch, capsys):
    def execve(path, command, environment):
        assert command == [str(path), "-L", "localfilesystem:/nowhere", "nodaemon", "server"]
        assert environment["ADB_USB"] == "1"
        raise BecameAdbError

    config = tmp_path / "farm.toml"
    config.write_text(wrong)
    monkeypatch.setenv("FARM_CONFIG", str(config))
    monkeypatch.setattr("os.execve", execve)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BecameAdbError):
        adb_service.main(["--socket", "localfilesystem:/nowhere", "--folder", str(tmp_path / "adb")])
    assert "adb starts with the defaults of [adb]" in capsys.readouterr().err
