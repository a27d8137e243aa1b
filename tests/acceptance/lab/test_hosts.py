"""A lab of two hosts, from either of them: one picture, verbs about the other's phones, and hosts that come and go."""

import json
import signal
import urllib.request
from contextlib import ExitStack

import psycopg
import pytest

from farm.common.errors import ExitCode
from farm.simulation.virtual_hosts import virtual_hosts
from tests.support import postgres
from tests.support.needs import need
from tests.support.whole_farm import answer, refused, until

LISTEN = 'listen = "tcp://127.0.0.1:0"\n'


@pytest.fixture(scope="module")
def lab():
    need("g++", "mksh", "toybox")
    postgres.need()
    with ExitStack() as stack:
        hosts = {"lab1": {"one": "galaxy-s9"}, "lab2": {"two": "galaxy-a55"}}
        made = stack.enter_context(virtual_hosts(hosts, config=LISTEN, report=lambda _: None))
        made.wait_ready(lambda _: None)
        yield made


@pytest.fixture
def here(lab):
    return lab.farms["lab1"]


@pytest.fixture
def there(lab):
    return lab.farms["lab2"]


def phone_of(farm, host):
    return next(row["name"] for row in farm.status()["devices"] if row["host"] == host)


def row_of(farm, serial):
    """The phone of this host; empty: it has none of that serial."""
    status = farm.status()
    mine = [each for each in status["devices"] if (each["host"], each["serial"]) == (status["host"], serial)]
    return mine[0] if mine else {}


def rows(lab, query):
    with psycopg.connect(lab.url) as connection:
        return connection.execute(query).fetchall()


def states(farm):
    return {row["name"]: row["state"] for row in answer(farm.farm("host", "list", "--json"))["hosts"]}


def test_any_host_shows_the_whole_lab(here, there):
    until(lambda: states(here) == {"lab1": "ok", "lab2": "ok"})
    for farm in (here, there):
        status = farm.status()
        assert {row["host"]: row["state"] for row in status["devices"]} == {"lab1": "ready", "lab2": "ready"}
        assert {row["name"]: row["phones"] for row in status["hosts"]} == {"lab1": 1, "lab2": 1}
        until(
            lambda farm=farm: all(row["temperature_c"] and row["battery_percent"] for row in farm.status()["devices"])
        )
    shown = here.farm("status").stdout
    assert "Hosts lab1 ok, lab2 ok" in shown
    assert "HOST" in shown
    assert "lab2" in here.farm("top", "--once").stdout


def test_doctor_and_metrics_look_at_the_whole_lab(here):
    findings = json.loads(here.farm("doctor", "--json").stdout)["findings"]
    (hosts,) = [each for each in findings if each["check"] == "lab hosts"]
    assert (hosts["verdict"], hosts["detail"]) == ("ok", "2 hosts, none is away")
    with urllib.request.urlopen(f"{here.status()['web']}metrics") as page:
        samples = page.read().decode().splitlines()
    assert 'farm_lab_hosts{state="ok"} 2.0' in samples
    assert any(each.startswith('farm_lab_host_silence_seconds{host="lab2"}') for each in samples)


def test_status_and_doctor_say_that_no_head_decides(lab, here):
    def problems():
        return [each for each in here.status()["problems"] if each.startswith("no head decides")]

    assert problems() == []
    for head in lab.heads:
        head.stop()
    until(problems)
    until(lambda: here.farm("doctor").returncode == ExitCode.FAILED)  # its findings are shared for some seconds
    doctor = here.farm("doctor", "--json")
    assert ("lab head", "fail") in {(each["check"], each["verdict"]) for each in json.loads(doctor.stdout)["findings"]}
    for head in lab.heads:
        head.launch()
    until(lambda: not problems())


def test_a_verb_about_a_phone_of_another_host_is_answered_there_and_written_down_twice(lab, here, there):
    phone = phone_of(here, "lab2")
    details = answer(here.farm("device", "show", phone, "--json"))
    assert details["temperature_c"] is not None
    assert "\n  host: lab2\n" in here.farm("explain", "device", phone).stdout
    assert f"{phone} at lab2: " in here.farm("explain", "key", phone).stdout
    events = rows(lab, f"SELECT data FROM event WHERE subject = '{phone}'")
    assert {json.loads(data)["host"] for (data,) in events} == {"lab2"}
    assert "at lab2" in here.farm("top", "--once").stdout
    assert answer(here.farm("device", "drain", phone, "--json"))["service"] == "draining"
    assert next(row for row in there.status()["devices"] if row["name"] == phone)["service"] == "draining"
    assert answer(here.farm("device", "release", phone, "--json"))["service"] == "in"
    origins = rows(lab, "SELECT origin FROM audit WHERE kind = 'device.service'")
    assert [("at host lab1" in origin) for (origin,) in origins] == [True] * 4
    refused(here.farm("device", "show", "no-such-phone"), ExitCode.USAGE, "no-such-phone")


def test_a_selector_means_the_phones_of_a_host(here):
    phone = phone_of(here, "lab2")
    assert answer(here.farm("device", "show", phone, "--json"))["labels"]["host"] == "lab2"
    ran = answer(here.farm("shell", "--on", "android,host=LAB2", "--devices", "all", "--json", "--", "true"))
    assert [each["device"] for each in ran["results"]] == [phone]
    assert f"{phone} at lab2: " in here.farm("explain", "key", "host=lab2").stdout
    refused(
        here.farm("shell", "--on", "host=lab9", "--", "id"), ExitCode.NO_PHONE, "no phone matches host=lab9", "lab2"
    )


def test_a_host_is_drained_from_another_one(here, there):
    assert answer(here.farm("host", "drain", "lab2", "--json"))["draining"]
    until(lambda: states(there)["lab2"] == "drained")
    assert there.status()["draining"]
    assert not here.status()["draining"]
    assert not answer(here.farm("host", "drain", "lab2", "--undo", "--json"))["draining"]
    until(lambda: states(here)["lab2"] == "ok")
    refused(here.farm("host", "drain", "lab9"), ExitCode.USAGE, "there is no host 'lab9'")


def test_the_labs_configuration_holds_at_every_host_and_at_the_head(here, there, tmp_path):
    file = tmp_path / "lab.toml"
    file.write_text('[aliases]\nours = "android"\n[user.nobody]\njobs = 0\n[quota]\npriority = 3\n')
    assert "quota.priority" in answer(here.farm("lab", "config", str(file), "--json"))["applied"]
    assert answer(there.farm("lab", "config", "--json"))["text"] == file.read_text()
    shell = ("shell", "--on", "ours", "--priority", "4", "--json", "--", "true")  # the head decides about it
    until(lambda: there.farm(*shell).returncode == ExitCode.NOT_ALLOWED)
    file.write_text("[heat]\n")
    refused(there.farm("lab", "config", str(file)), ExitCode.USAGE, "'heat' is none of its keys")
    file.write_text("")
    answer(there.farm("lab", "config", str(file), "--json"))
    until(lambda: there.farm(*shell).returncode == ExitCode.NO_PHONE)


def test_a_phone_that_two_hosts_reach_is_used_by_one(lab, here, there):
    """The phone of lab1 is on the network too: lab2 would end its server, and with it the sessions there."""
    phone, one = phone_of(here, "lab1"), here.lab.status()["one"]
    seen = here.status()["seq"]
    assert there.farm("device", "add", one.address).returncode == 0
    until(lambda: row_of(there, one.address).get("reason") == f"host lab1 has the same phone, as {phone}")
    assert rows(lab, f"SELECT kind FROM event WHERE subject = '{phone}' AND seq > {seen}") == []  # its server continues
    here.lab.unplug("one")
    until(lambda: row_of(here, one.serial)["state"] == "gone")
    here.lab.plug("one")  # both find it at about the same moment

    def one_has_it():
        known = [row_of(here, one.serial), row_of(there, one.address)]
        states = sorted((each["state"], "has the same phone" in each["reason"]) for each in known)
        return states == [("ready", False), ("recovering", True)]

    until(one_has_it)
    assert there.farm("device", "forget", row_of(there, one.address)["name"]).returncode == 0
    until(lambda: row_of(here, one.serial)["state"] == "ready")


def test_a_machine_joins_with_a_token_once(lab, here, tmp_path):
    made, line = answer(here.farm("host", "token", "lab3", "--url", lab.url, "--json")), tmp_path / "token"
    line.write_text(made["token"])
    until(lambda: [each["name"] for each in answer(here.farm("host", "list", "--json"))["tokens"]] == ["lab3"])
    config = tmp_path / "farm.toml"
    own = ("--config", str(config), "--state-dir", str(tmp_path / "state"))
    joined = answer(here.farm("host", "join", str(line), *own, "--write", "--json"))
    assert joined["name"] == "lab3"
    assert 'host = "lab3"' in config.read_text()
    (passfile,) = (tmp_path / "state" / "keys").iterdir()
    assert passfile.stat().st_mode & 0o777 == 0o600
    until(lambda: states(here).get("lab3") == "stopped")
    refused(here.farm("host", "join", str(line), *own), ExitCode.USAGE, "has a database already")
    config.write_text("")
    refused(here.farm("host", "join", str(line), *own), ExitCode.NOT_ALLOWED, "does not take this token")
    line.write_text(made["token"][:-5])
    refused(here.farm("host", "join", str(line), *own), ExitCode.USAGE, "no host token")
    refused(here.farm("host", "token", "lab2", "--url", lab.url), ExitCode.USAGE, "there is a host lab2")
    answer(here.farm("host", "remove", "lab3", "--url", lab.url, "--json"))
    until(lambda: "lab3" not in states(here))


def test_a_host_says_how_old_its_picture_is_while_the_database_is_away(lab, here):
    def listed():
        return here.farm("host", "list").stdout.splitlines()

    assert not any(line.startswith("warning: ") for line in listed())
    lab.server.stop()
    until(lambda: listed()[-1].startswith("warning: the lab is shown as it was "))
    assert sum("database last answered this host" in line for line in listed()) == 1
    assert states(here) == {"lab1": "unknown", "lab2": "unknown"}
    status = here.farm("status").stdout
    assert "Hosts lab1 unknown, lab2 unknown" in status
    assert status.count("the lab is shown as it was ") == 1

    def of_lab():
        findings = json.loads(here.farm("doctor", "--json").stdout)["findings"]
        return [(each["verdict"], each["detail"]) for each in findings if each["check"].startswith("lab ")]

    until(lambda: [verdict for verdict, _ in of_lab()] == ["warn"])  # its findings are shared for some seconds
    assert "the lab is shown as it was " in of_lab()[0][1]
    lab.server.start()
    until(lambda: states(here) == {"lab1": "ok", "lab2": "ok"})


def test_a_host_that_is_silent_is_away_and_one_that_is_removed_ends(lab, here, there):
    phone = phone_of(here, "lab2")
    there.daemon.process.send_signal(signal.SIGSTOP)
    until(lambda: states(here)["lab2"] == "lost")
    assert next(row for row in here.status()["devices"] if row["name"] == phone)["state"] == "gone"
    refused(here.farm("device", "reboot", phone), ExitCode.FAILED, "host lab2", "is lost")
    there.daemon.process.send_signal(signal.SIGCONT)
    until(lambda: states(here)["lab2"] == "ok")
    refused(here.farm("host", "remove", "lab2", "--url", lab.url), ExitCode.USAGE, "lab2 stays in the lab: it runs")
    removed = answer(here.farm("host", "remove", "lab2", "--force", "--url", lab.url, "--json"))
    assert not removed["had_role"]  # it used the owner's
    assert there.daemon.wait() == "exit code 1"
    assert "This host was removed from the lab." in there.daemon.log_end()
    until(lambda: list(states(here)) == ["lab1"])
    assert [row["host"] for row in here.status()["devices"]] == ["lab1"]
    removals = "SELECT subject FROM event WHERE kind = 'host.removed' ORDER BY seq"
    until(lambda: rows(lab, removals)[-1:] == [("lab2",)])
