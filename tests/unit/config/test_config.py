import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from farm.config import BuildersConfig, ConfigError, ControlConfig, FarmConfig, WebConfig, load
from farm.config.consistency import own_ports
from farm.devices.thermal.thermal_rules import HeatConfig, policy_for
from farm.head.config import LabConfig
from farm.model.requests import LeaseClass


def write(tmp_path, text):
    path = tmp_path / "farm.toml"
    path.write_text(text)
    return path


def test_flags_beat_environment_beats_file(tmp_path):
    path = write(tmp_path, "[tvm]\nport = 1001\nhost = '127.0.0.2'\n[adb]\nusb = false\n")
    config = load(path, environ={"FARM_TVM__PORT": "1002", "FARM_ADB__USB": "true"}, flags={"tvm.port": 1003})
    assert (config.tvm.port, config.tvm.host, config.adb.usb) == (1003, "127.0.0.2", True)


def test_a_table_by_name_keeps_what_it_does_not_say(tmp_path):
    text = "[quota]\ndevices = 2\njobs = 9\n[user.ci]\nweight = 0.5\njobs = 50\n[toolchain.next]\npython = 'p'\n"
    config = load(write(tmp_path, text), environ={"FARM_USER__ANN__PRIORITY": "9"})
    assert (config.user["ci"].weight, config.user["ci"].devices, config.user["ci"].jobs) == (0.5, 2, 50)
    assert (config.user["ann"].priority, config.user["ann"].devices, config.user["ann"].weight) == (9, 2, 1.0)
    assert config.toolchain.keys() == {"default", "next"}


def test_a_flag_that_was_not_given_changes_nothing():
    assert load(environ={}, flags={"tvm.port": None}).tvm.port == 9190


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[tvm]\nprt = 1", "unknown key 'tvm.prt'", "tvm.port"),
        ("port = 9200", "unknown key 'port'", "tvm.port"),
        ("[[adopt]]\nmtch = '*'", "unknown key 'adopt.0.mtch'", "adopt.0.match"),
        ("[toolchain.default]\npyhton = 'x'", "unknown key 'toolchain.default.pyhton'", "toolchain.default.python"),
        ("[tvm]\nport = 70000", "tvm.port must be 65535 or less (got 70000)", "0 to 65535"),
        ("[lease]\nidle_s = -5", "lease.idle_s must be more than 0 (got -5)", "more than 0"),
        ("[lease]\nunused_s = 0", "lease.unused_s must be more than 0 (got 0)", ""),
        ("[lease]\nidle_s = inf", "lease.idle_s must be a number (got inf)", ""),
        ("[web]\nport = 70000", "web.port must be 65535 or less", ""),
        ("[web]\nhost = ''", "web.host must not be empty", ""),
        ("[user.bob]\nweight = 0", "user.bob.weight must be more than 0 (got 0)", "more than 0"),
        ("[heat.model.X.bench]\nskin_c = 3", "heat.model.X.bench.skin_c must be 10 or more", "10 to 200"),
        ("[tvm]\nport = 'many'", "tvm.port", ""),
        ("tvm = 5", "tvm", ""),
        ("[tvm.external]\nallow = ['10.0.0.0/99']", "10.0.0.0/99", "network"),
        ("[tvm", "not valid TOML", "close every bracket"),
        ("[tvm]\nhost = here", "not valid TOML", "texts stand in quotes"),
        ("state_dir = 5", "state_dir must be a path (got 5)", "quotes"),
        ("[heat.bench]\nskin = 38", "unknown key 'heat.bench.skin'", "heat.bench.skin_c"),
        (
            "[heat.model.'Pixel 7'.bnch]\nskin_c = 38",
            "unknown key 'heat.model.Pixel 7.bnch'",
            "heat.model.Pixel 7.bench",
        ),
        ("[heat.bench]\nskin_c = 3.8", "heat.bench.skin_c must be 10 or more (got 3.8)", "10 to 200"),
        ("[heat.tune]\nthrottle = 7", "heat.tune.throttle must be 6 or less (got 7)", "0 to 6"),
        ("[heat]\nmargin_c = -1", "heat.margin_c must be 0 or more (got -1)", ""),
        ("[gates.tvm_class]\nflagship = 'benhc'", "gates.tvm_class.flagship must be 'interactive', 'bench'", ""),
        ("[[adopt]]\nmatch = 'android'\npool = 'a,b'", "adopt.0: 'a,b' cannot be a pool: it has ','", "use letters"),
        (
            "[[adopt]]\nmatch = 'android'\nname = 'büro-{soc}'",
            "adopt.0: adopt rule 'android': no name has 'ü'",
            "beside",
        ),
        ("[aliases]\n'a,b' = 'gpu=adreno-740'", "aliases.a,b: 'a,b' cannot be a key", "use letters"),
        ("[gates.tvm_class]\n'a,b' = 'bench'", "gates.tvm_class.a,b: 'a,b' cannot be a key", "use letters"),
        ("[recovery.pool_away_s]\nSpare = 3.0", "recovery.pool_away_s.Spare: no pool is spelt so", "write spare"),
        ("[gates.tvm_class]\nflagship = 'x'", "gates.tvm_class.flagship", ""),
        ("[health.model.X]\nignore = ['clok-held']", "health.model.X.ignore.0", "did you mean 'clock-held'?"),
        ("[power]\nswitch = 'no'", "power.switch must be 'uhubctl', 'command' or 'none'", ""),
        ("[heat]\nstale_s = 0", "heat.stale_s: 0 s is not above probe.every_s (10 s)", "several times"),
        ("[probe]\nevery_s = 300", "heat.stale_s: 120 s is not above probe.every_s (300 s)", "several times"),
        ("[probe]\nevery_s = 0.001", "probe.every_s must be 0.2 or more (got 0.001)", "0.2 to 3600"),
        ("[probe]\nevery_s = 1e9", "probe.every_s must be 3600 or less", ""),
        ("[heat]\nmargin_c = 40", "heat.margin_c must be 20 or less (got 40)", ""),
        ("[heat]\ncool_for_s = 1e6", "heat.cool_for_s must be 3600 or less", ""),
        ("[heat.bench]\nskin_c = 49", "heat.bench.skin_c: 49 is above heat.hard.skin_c (48)", "at most"),
        ("[heat.hard]\nskin_c = 40", "heat.tune.skin_c: 43 is above heat.hard.skin_c (40)", "change one"),
        ("[heat.model.X.bench]\ncpu_c = 106", 'heat.model."X".bench.cpu_c: 106 is above', "at most"),
        ("[heat.end_leases]\nskin_c = 45", "heat.end_leases.skin_c: 45 is below heat.hard.skin_c (48)", "at least"),
        ("[health]\ndata_full_mb = 2000", "health.data_full_mb: 2000 is above data_low_mb (1000)", "before"),
        ("[health]\nbattery_cold_c = 50", "health.battery_cold_c: 50 °C is not below 47 °C", "55"),
        ("[health]\nworn_percent = 650", "health.worn_percent must be 100 or less (got 650)", ""),
        ("[quiesce]\nrestore_after_s = 1", "quiesce.restore_after_s must be 5 or more (got 1)", ""),
        (
            "[control]\nlisten = 'tcp://0.0.0.0:9192'",
            "control.listen: 'tcp://0.0.0.0:9192' leads nowhere",
            "one address",
        ),
        ("[lab]\nlisten = 'lab1:9194'", "lab.listen: 'lab1:9194' is no address", "tcp://"),
        ("[tvm]\ngate = 'inside'", "tvm.gate: 'inside' is no path of a socket", "farm-gate"),
        ("[lab]\nlisten = 'tcp://0.0.0.0:9194'", "lab.listen: 'tcp://0.0.0.0:9194' is no one address", "dial it"),
        ("[lab]\nlisten = 'tcp://10.0.0.1:9194'", "lab.listen: this is the only host", "apart"),
        (
            (
                "[builders]\nlisten = 'tcp://10.0.0.1:9194'\n[store]\nurl = 'postgresql://db/farm'\n"
                "[lab]\nhost = 'lab1'\nhead = 'apart'\nlisten = 'tcp://10.0.0.1:9194'"
            ),
            "lab.listen: builders have port 9194",
            "another",
        ),
        ("[lab]\nobject_store = 's3://b/p'", "lab.object_store: this is the only host", "apart"),
        ("[lab]\nhost = 'Lab One'", "lab.host: 'Lab One' is no host name", "small letters"),
        ("[lab]\nhead = 'apart'", "lab.host: missing", '[lab] host = "lab1"'),
        ("[lab]\nhead = 'apart'\nhost = 'lab1'", 'lab.head: "apart" needs a database on a server', "postgresql://"),
        ("[store]\nurl = 'postgresql://db/farm'", "store.url: PostgreSQL is for a lab", "farm lab create"),
        ("[lab]\nhead = 'away'", "lab.head must be 'inside' or 'apart'", ""),
        ("[power.hub.xx]\nswitch = 'none'", 'power.hub."xx" is no hub', '"1-4.2"'),
        ("[power]\noff = ['x', '{nosuch}']\non = ['x']", "power.off: {nosuch} is not defined", "{hub}"),
    ],
)
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
