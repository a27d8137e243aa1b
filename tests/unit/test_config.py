import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from farm.config import ConfigError, FarmConfig, load
from farm.core.heat_policy import HeatConfig, policy_for
from farm.core.requests import LeaseClass


def write(tmp_path, text):
    path = tmp_path / "farm.toml"
    path.write_text(text)
    return path


def test_flags_beat_environment_beats_file(tmp_path):
    path = write(tmp_path, "[tvm]\nport = 1001\nhost = '127.0.0.2'\n[adb]\nusb = false\n")
    config = load(path, environ={"FARM_TVM__PORT": "1002", "FARM_ADB__USB": "true"}, flags={"tvm.port": 1003})
    assert (config.tvm.port, config.tvm.host, config.adb.usb) == (1003, "127.0.0.2", True)


def test_a_flag_that_was_not_given_changes_nothing():
    assert load(environ={}, flags={"tvm.port": None}).tvm.port == 9190


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[tvm]\nprt = 1", "unknown key 'tvm.prt'", "tvm.port"),
        ("port = 9200", "unknown key 'port'", "tvm.port"),
        ("[[adopt]]\nmtch = '*'", "unknown key 'adopt.0.mtch'", "adopt.0.match"),
        ("[toolchain.default]\npyhton = 'x'", "unknown key 'toolchain.default.pyhton'", "toolchain.default.python"),
        ("[tvm]\nport = 70000", "70000 is not a port", "0 to 65535"),
        ("[lease]\nidle_s = -5", "lease.idle_s: -5.0", "more than 0"),
        ("[lease]\nunused_s = 0", "lease.unused_s: 0.0", "more than 0"),
        ("[lease]\nidle_s = inf", "lease.idle_s: inf", "more than 0"),
        ("[tvm]\nport = 'many'", "tvm.port", ""),
        ("tvm = 5", "tvm", ""),
        ("[tvm.external]\nallow = ['10.0.0.0/99']", "10.0.0.0/99", "network"),
        ("[toolchain.other]\npython = 'p'", "[toolchain.default] is missing", "default"),
        ("[tvm", "not valid TOML", ""),
        ("[heat.bench]\nskin = 38", "unknown key 'heat.bench.skin'", "heat.bench.skin_c"),
        (
            "[heat.model.'Pixel 7'.bnch]\nskin_c = 38",
            "unknown key 'heat.model.Pixel 7.bnch'",
            "heat.model.Pixel 7.bench",
        ),
        ("[heat.bench]\nskin_c = 3.8", "heat.bench.skin_c: 3.8", "10 to 200"),
        ("[heat.tune]\nthrottle = 7", "heat.tune.throttle: 7", "3 severe"),
        ("[heat]\nmargin_c = -1", "heat.margin_c: -1.0", "0 or more"),
        ("[gates.tvm_class]\nflagship = 'benhc'", "gates.tvm_class.flagship must be 'interactive', 'bench'", ""),
    ],
)
def test_a_mistake_is_named_with_the_way_out(tmp_path, text, message, hint):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), environ={})
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


def test_a_missing_file_is_an_error_when_it_was_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load(tmp_path / "absent.toml", environ={})


def test_paths_are_absolute_and_sockets_follow_them(tmp_path):
    config = load(environ={}, flags={"runtime_dir": str(tmp_path)})
    assert config.control_socket == tmp_path / "control.sock"
    assert config.adb_socket == f"localfilesystem:{tmp_path}/adb.sock"
    assert config.state_dir.is_absolute()


def test_the_documented_file_is_the_whole_configuration(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    path = write(tmp_path, text.partition("```toml\n")[2].partition("```")[0])
    config = load(path, environ={})
    documented = tomllib.loads(path.read_text())
    assert set(documented) == {field.name for field in fields(FarmConfig)}
    for name in ("tvm", "adb", "lease"):
        assert set(documented[name]) == {field.name for field in fields(getattr(config, name))}
    assert policy_for("", config.heat) == policy_for("", HeatConfig())  # it shows the defaults
    assert config.gates.tvm_class == {"flagship": LeaseClass.BENCH}
    assert config.adopt[0].match == "vendor=google"
