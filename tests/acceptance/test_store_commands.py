"""`farm store ...` and the event stream: while the daemon serves, after it was killed, and when it starts again."""

import json
import os
import signal

import pytest

from farm.common.errors import ExitCode, FarmError
from farm.control.client import ControlClient
from tests.support.forked_commands import run_farm
from tests.support.waiting import HANG_S
from tests.support.whole_farm import answer, phones

pytestmark = pytest.mark.farm("galaxy-s9")


@pytest.fixture
def alone(farm):
    """Options for a command that finds no daemon."""
    return ("--state-dir", str(farm.folder / "state"))


def backups(farm):
    return sorted((farm.folder / "state").glob("farm.db.backup-*"))


def told(farm, since, **fields):
    """The events after a number, without waiting for further ones."""
    with ControlClient(farm.socket) as client:
        *events, last = client.stream("events", HANG_S, since=since, follow=False, **fields)
    return events, last


def test_while_it_serves(farm, tmp_path):
    report = answer(farm.farm("store", "check", "--json"))
    assert report["ok"] is True
    assert report["findings"] == []
    assert report["rows"]["device"] == 1
    text = farm.farm("store", "check")
    assert text.stdout.splitlines()[-1] == "sound"

    made = answer(farm.farm("store", "backup", "--json"))
    assert [str(each) for each in backups(farm)] == [made["path"]]
    named = tmp_path / "copy.db"
    assert str(named) in farm.farm("store", "backup", str(named)).stdout
    assert named.stat().st_size == made["size_bytes"]
    assert [str(each) for each in backups(farm)] == [made["path"]]  # what the client received is nowhere else
    refused = farm.farm("store", "restore", str(named))
    assert (refused.returncode, "stop it first" in refused.stderr) == (ExitCode.USAGE, True), refused.stderr
    for wrong, said in ((named, "exists already"), (tmp_path / "absent" / "x", "there is no folder")):
        done = farm.farm("store", "backup", str(wrong))
        assert (done.returncode, said in done.stderr) == (ExitCode.USAGE, True), done.stderr

    other = farm.farm("store", "check", "--state-dir", str(tmp_path))  # it checked the daemon's, and said "sound"
    assert (other.returncode, "--state-dir and --config are for when no daemon runs" in other.stderr) == (2, True)
    assert "would remove 0 jobs" in farm.farm("store", "prune", "--dry-run").stdout
    pruned = answer(farm.farm("store", "prune", "--keep-days", "1", "--json"))
    assert (pruned["jobs"], pruned["dry_run"]) == (0, False)
    assert farm.farm("store", "prune", "--keep-days", "-1").returncode == ExitCode.USAGE


def test_events_from_the_store_and_from_memory(farm):
    everything, last = told(farm, 0)
    kinds = [event["kind"] for event in everything]
    assert kinds.index("device.starting") < kinds.index("device.ready")
    numbers = [event["seq"] for event in everything]
    assert numbers == sorted(set(numbers))
    assert last == {"seq": numbers[-1]}
    assert told(farm, numbers[-1]) == ([], {"seq": numbers[-1]})
    name = next(event["subject"] for event in everything if event["kind"] == "device.ready")
    about, _ = told(farm, 0, subject=name)
    assert about == [event for event in everything if event["subject"] == name]


def test_without_a_daemon_and_over_a_restart(farm, alone, tmp_path):
    def alone_too(*words):
        return farm_without_daemon(farm, *words, *alone)

    before, _ = told(farm, 0)
    kept = [event for event in before if event["kind"] != "device.pushing"]
    pid = farm.status()["pid"]
    os.kill(pid, signal.SIGSTOP)  # it has the folder, and does not answer
    try:
        said = alone_too("store", "check")
        assert (said.returncode, f"another daemon (pid {pid})" in said.stderr) == (ExitCode.FAILED, True), said.stderr
    finally:
        os.kill(pid, signal.SIGCONT)
    assert farm.farm("store", "prune", "--dry-run").returncode == 0  # 0.5 s and more later: all events are kept
    farm.daemon.stop()
    report = json.loads(alone_too("store", "check", "--json").stdout)
    assert report["ok"] is True
    assert report["rows"]["event"] >= len(kept)
    copy = tmp_path / "copy.db"
    assert alone_too("store", "backup", str(copy)).returncode == 0
    assert copy.stat().st_size > 0
    assert json.loads(alone_too("store", "prune", "--dry-run", "--json").stdout)["jobs"] == 0
    assert "there is no state folder" in farm_without_daemon(farm, "store", "check", "--state-dir", "/absent").stderr

    farm.daemon.start().close()
    farm.wait_ready(1)
    after, _ = told(farm, 0)
    assert after[: len(kept)] == kept
    assert told(farm, kept[-1]["seq"])[0] == after[len(kept) :]

    farm.daemon.kill()
    database = farm.folder / "state" / "farm.db"
    database.write_bytes(b"damage" * 1000)
    with pytest.raises(FarmError) as caught:
        farm.daemon.start()
    assert "is damaged or is no database" in str(caught.value)
    assert f"farm store restore {backups(farm)[-1]} --state-dir {database.parent}" in caught.value.hint
    assert "Traceback" not in farm.daemon.log.read_text()
    assert alone_too("store", "restore", str(backups(farm)[-1])).returncode == 0
    farm.daemon.start().close()
    farm.wait_ready(1)


def test_ports_stay_over_the_daemons_death(farm):
    before = farm.status()
    web = int(before["web"].rstrip("/").rpartition(":")[2])
    farm.daemon.keep_ports(before["tracker"]["port"], web_port=web)
    assert farm.client.call("reload")["restart"] == []  # nobody has changed anything
    farm.daemon.kill()
    assert farm.daemon.wait() == "signal 9"
    farm.daemon.start().close()
    after = farm.status()
    assert (after["web"], after["adb"]) == (before["web"], before["adb"])
    assert after["tracker"]["port"] == before["tracker"]["port"]
    farm.wait_ready(1)
    assert phones(farm)[0].row["state"] == "ready"


def farm_without_daemon(farm, *words):
    """A command whose daemon does not answer."""
    return run_farm(*words, environ={**os.environ, "FARM_SOCKET": str(farm.folder / "absent.sock")})
