import re
import tomllib
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest

from farm.client.lease import HeldPhone
from farm.config import (
    BuildersConfig,
    ConfigError,
    ControlConfig,
    FarmConfig,
    WebConfig,
    check_lab_config,
    lab_keys,
    load,
)
from farm.config.consistency import own_ports
from farm.devices.thermal.thermal_rules import HeatConfig, policy_for
from farm.head.config import LabConfig
from farm.model.requests import LeaseClass
from tests.support.golden import rows


def write(tmp_path, text):
    path = tmp_path / "farm.toml"
    path.write_text(text)
    return path


def test_flags_beat_environment_beats_file(tmp_path):
    path = write(tmp_path, "[tvm]\nport = 1001\nhost = '127.0.0.2'\n[adb]\nusb = false\n")
    config = load(path, environ={"FARM_TVM__PORT": "1002", "FARM_ADB__USB": "true"}, flags={"tvm.port": 1003})
    assert (config.tvm.port, config.tvm.host, config.adb.usb) == (1003, "127.0.0.2", True)
    assert load(environ={}, flags={"tvm.port": None}).tvm.port == 9190  # a flag that was not given


def test_a_table_by_name_keeps_what_it_does_not_say(tmp_path):
    text = "[quota]\ndevices = 2\njobs = 9\n[user.ci]\nweight = 0.5\njobs = 50\n[toolchain.next]\npython = 'p'\n"
    config = load(write(tmp_path, text), environ={"FARM_USER__ANN__PRIORITY": "9"})
    assert (config.user["ci"].weight, config.user["ci"].devices, config.user["ci"].jobs) == (0.5, 2, 50)
    assert (config.user["ann"].priority, config.user["ann"].devices, config.user["ann"].weight) == (9, 2, 1.0)
    assert config.toolchain.keys() == {"default", "next"}


def test_what_the_lab_sets_replaces_those_keys_of_the_file_and_no_others(tmp_path):
    own = "[quota]\ndevices = 2\n[user.ci]\njobs = 50\n[jobs]\nworkers = 3\nuser = 'u'\n[aliases]\nfast = 'soc=a'\n"
    lab = "[quota]\njobs = 9\n[user.ann]\nweight = 2.0\n[jobs]\nworkers = 5\n"
    check_lab_config(lab)
    assert lab_keys(lab) == ("quota", "user", "jobs.workers")
    config = load(write(tmp_path, own), environ={"FARM_QUOTA__DEVICES": "4"}, lab=lab)
    assert (config.quota.devices, config.quota.jobs, config.jobs.workers, config.jobs.user) == (4, 9, 5, "u")
    assert (config.user.keys(), config.user["ann"].jobs) == ({"ann"}, 9)
    assert config.aliases == {"fast": "soc=a"}


@pytest.mark.parametrize(
    ("text", "message"), [*rows(__file__, "lab_mistakes"), ("#" * 1_000_001, "more than 1,000,000 characters")]
)
def test_the_labs_configuration_has_its_own_keys_only(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        check_lab_config(text)
    assert refused.value.message.startswith("the lab's configuration")


def test_what_a_lease_sets_for_its_commands_is_no_configuration():
    held = HeldPhone(
        job="j", lease="l", device="d", serial="s", tvm_host="h", tvm_port=1, tvm_key="k", adb_port=2,
        expires_at=datetime.now(UTC),
    )  # fmt: skip
    assert load(environ=held.environment) == load(environ={})


@pytest.mark.parametrize(("text", "message", "hint"), rows(__file__, "mistakes"))
def test_a_mistake_is_named_with_the_way_out(tmp_path, text, message, hint):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), environ={})
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"FARM_HEAT__BENCH__SKIN_C": "abc"},
            "environment FARM_HEAT__BENCH__SKIN_C: heat.bench.skin_c must be a number",
        ),
        ({"FARM_HEAT__BENCH__SKIN_C": "49"}, "environment FARM_HEAT__BENCH__SKIN_C: heat.bench.skin_c: 49 is above"),
        ({"FARM_PROBE__EVRY_S": "5"}, "environment FARM_PROBE__EVRY_S: unknown key 'probe.evry_s'"),
    ],
)
def test_a_mistake_in_a_variable_names_the_variable_and_not_the_file(tmp_path, environ, message):
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "[tvm]\nport = 1001"), environ=environ)
    assert caught.value.message.startswith(message)
    assert "quotes" not in caught.value.hint


def test_fields_of_a_hub_and_hubs_by_their_names_are_understood(tmp_path):
    text = """
[power]
off = ["ssh", "{box}", "{port}"]
on = ["ssh", "{box}", "{port}"]
[power.hub."1-4".fields]
box = "left"
[power.hub.usb1]
switch = "none"
"""
    assert load(write(tmp_path, text), environ={}).power.hub["1-4"].fields == {"box": "left"}


def test_a_missing_file_is_an_error_when_it_was_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load(tmp_path / "absent.toml", environ={})


def test_paths_are_absolute_and_sockets_follow_them(tmp_path):
    config = load(environ={}, flags={"runtime_dir": str(tmp_path)})
    assert config.control_socket == tmp_path / "control.sock"
    assert config.adb_socket == f"localfilesystem:{tmp_path}/adb.sock"
    assert config.state_dir.is_absolute()


def test_the_documented_file_is_the_whole_configuration(tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    path = write(tmp_path, text.partition("```toml\n")[2].partition("```")[0])
    config = load(path, environ={})
    documented = tomllib.loads(path.read_text())
    assert set(documented) == {field.name for field in fields(FarmConfig)}
    for name in ("tvm", "adb", "lease"):
        assert set(documented[name]) == {field.name for field in fields(getattr(config, name))}
    assert policy_for("", config.heat) == policy_for("", HeatConfig())  # it shows the defaults
    assert config.gates.tvm_class == {"flagship": LeaseClass.BENCH}
    assert config.adopt[0].match == "vendor=google"


def test_farms_ports_are_those_of_all_its_listeners():
    control, lab = ControlConfig("tcp://192.0.2.1:9192"), LabConfig(listen="tcp://[2001:db8::1]:9196")
    whole = FarmConfig(control=control, lab=lab, builders=BuildersConfig("tcp://0.0.0.0:9193"), web=WebConfig(port=80))
    assert own_ports(whole) == {9190, 80, 9195, 9192, 9193, 9196}
    assert own_ports(FarmConfig(web=WebConfig(port=0))) == {9190, 9195}
