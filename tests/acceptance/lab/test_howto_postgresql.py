"""docs/many-hosts.md does what it says: an empty server, a store that moves, a farm that continues from there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from farm.common.errors import ExitCode
from farm.simulation.postgres import programs
from tests.support import postgres
from tests.support.pages import ROOT, section
from tests.support.whole_farm import answer, phones, refused, running_farm, until, until_ready

GUIDE = section(ROOT / "docs" / "many-hosts.md", "PostgreSQL for one host")
COMMANDS = re.findall(r"^# (.*)$", "\n".join(re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)), re.MULTILINE)
PASSWORD = "correct horse"


@pytest.fixture
def server():
    postgres.need()
    with postgres.guarded_server() as server:
        yield server


class Reader:
    """Types the guide's commands; `db.example` is the server of the test."""

    def __init__(self, server, farm, home):
        self.server, self.farm = server, farm
        self.place = f"127.0.0.1:{server.port}"
        (home / ".pgpass").write_text(f"127.0.0.1:{server.port}:farm:farm:{PASSWORD}\n")
        (home / ".pgpass").chmod(0o600)
        self.own = ("--config", str(farm.daemon.config), "--state-dir", str(farm.folder / "state"))

    def type(self, line):
        """What a command printed."""
        words = line.replace("db.example", self.place).split()
        match words:
            case ["apt-get", "install", *_]:
                return ""
            case ["sudo", "-u", "postgres", program, *arguments]:
                return self._as_superuser(program, *arguments)
            case ["systemctl", "stop", "farm"]:
                self.farm.daemon.stop()
            case ["systemctl", "start", "farm"]:
                self.farm.daemon.start().close()
            case ["farm", "doctor"]:
                return self.run("doctor", "--json").stdout
            case ["farm", *arguments]:
                done = self.run(*arguments, *self.own)
                assert done.returncode == 0, done
                return done.stdout
            case _:
                raise AssertionError(f"the test does not know: {line}")
        return ""

    def run(self, *arguments):
        """A command of farm, whether or not there is a daemon."""
        return subprocess.run(
            [sys.executable, "-m", "farm", *arguments], env={**os.environ, "FARM_SOCKET": str(self.farm.socket)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def _as_superuser(self, program, *arguments):
        environment = {**os.environ, "PGHOST": str(self.server.folder), "PGPORT": str(self.server.port)}
        folder = programs()
        done = subprocess.run(
            [folder / program, *arguments], env={**environment, "PGUSER": "postgres"}, start_new_session=True,
            input=f"{PASSWORD}\n{PASSWORD}\n", capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout


def test_the_guide_from_an_empty_machine_to_a_farm_on_postgresql(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # of the daemon, too: its .pgpass
    with running_farm("galaxy-s9") as farm:
        reader = Reader(server, farm, tmp_path)
        (phone,) = phones(farm)
        name = phone.name
        spec = {"kind": "shell", "on": name, "command": "echo kept"}
        (job,) = farm.client.call("job.submit", spec=spec)["jobs"]
        until(lambda: farm.client.call("job.show", job=job["id"])["job"]["state"] == "done")
        said = {}
        for line in COMMANDS:
            if line.startswith("systemctl stop"):
                running = reader.run("lab", "init", "--url", f"postgresql://farm@{reader.place}/farm", *reader.own)
                refused(running, ExitCode.USAGE, "a daemon serves from", "systemctl stop farm")
            if line.startswith("systemctl start"):
                url = re.search(r'^\[store\]\nurl = "(.*)"$', said["farm lab init"], re.MULTILINE)[1]
                farm.daemon.config.write_text(f'{farm.daemon.config.read_text()}[store]\nurl = "{url}"\n')
            said[" ".join(line.split()[:3])] = reader.type(line)
        assert PASSWORD not in "".join(said.values())
        until_ready(farm)
        assert phone.name == name
        assert farm.client.call("job.show", job=job["id"])["job"]["state"] == "done"
        checks = [line for line in said["farm doctor"].splitlines() if "PostgreSQL 1" in line]
        assert checks
        assert answer(reader.run("store", "check", "--json"))["ok"] is True
        assert not [each for each in farm.status()["problems"] if "cannot be" in each]
        farm.daemon.stop()
        again = answer(reader.run("lab", "init", *reader.own, "--json"))
        assert again["before"] is True


def test_the_guide_is_short():
    assert len(GUIDE.split()) <= 610
    assert [Path(line.split()[0]).name for line in COMMANDS].count("farm") == 2
