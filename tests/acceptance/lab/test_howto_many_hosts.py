"""docs/many-hosts.md does what it says: from a single farm to a lab of two hosts, which one leaves again.

What it says of a host with systemd is in test_lab_setup."""

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack

import psycopg
import pytest

from farm.simulation.farm_process import FarmProcess
from farm.simulation.postgres import programs
from farm.simulation.virtual_farm import virtual_farm
from tests.support import postgres
from tests.support.pages import ROOT, blocks_of
from tests.support.whole_farm import phones, until

pytestmark = pytest.mark.timeout(900.0)
GUIDE = (ROOT / "docs" / "many-hosts.md").read_text().partition("\n## Replicate the database\n")[0]
PASSWORD = "correct horse"
HOSTS = ("lab1", "lab2")
OF_CONFIGURATION = (("lab", "init"), ("host", "join"))


@pytest.fixture
def server():
    postgres.need()
    with postgres.guarded_server() as server:
        yield server


class Reader:
    """Types the guide's commands at its machines; `db.example` is the server of the test."""

    def __init__(self, server, farms, stack):
        self.server, self.farms = server, farms
        self.place = f"127.0.0.1:{server.port}"
        self.token = self.url = ""  # that the first host got
        self.heads = []
        self._stack = stack
        self._configured = set()

    def type(self, machine, line):
        """What a command printed."""
        words = line.replace("db.example", self.place).split()
        match machine, words:
            case "db", ["sudo", "-u", "postgres", program, *arguments]:
                return self._as_superuser(program, *arguments)
            case _, ["systemctl", "stop", "farm"]:
                self.farms[machine].daemon.stop()
            case _, ["systemctl", "start", "farm"] | ["farm", "serve", "&"]:
                self._configure(machine)
                self.farms[machine].daemon.start().close()
            case _, ["farm", "head", "&"]:
                self._begin_head(machine)
            case _, ["farm", "lab", "create", *_]:
                return ""
            case _, ["farm", *arguments]:
                return self._farm(machine, *arguments)
            case _:
                raise AssertionError(f"the test does not know: {line}")
        return ""

    def _farm(self, machine, *arguments):
        farm, options = self.farms[machine], []
        if arguments[:2] in OF_CONFIGURATION:
            farm.daemon.stop()
            options += ["--config", str(farm.daemon.config), "--state-dir", str(farm.folder / "state")]
        if arguments[:2] == ("host", "remove"):  # `farm lab create` would have kept it
            options += ["--url", f"postgresql://farm_admin@{self.place}/farm"]
        done = subprocess.run(
            [sys.executable, "-m", "farm", *arguments[:2], *options, *arguments[2:]],
            input=self.token, env={**os.environ, "FARM_SOCKET": str(farm.socket)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        if arguments[:2] == ("host", "token"):
            self.token = done.stdout.split()[0]
        if arguments[:2] == ("lab", "init"):
            self.url = re.search('^url = ".*"$', done.stdout, re.MULTILINE)[0]
        return done.stdout

    def _configure(self, machine):
        """Write what the guide shows for this machine, once."""
        if machine in self._configured:
            return
        self._configured.add(machine)
        (first,) = blocks_of(GUIDE, "toml")
        first = re.sub("^url = .*$", self.url, first, flags=re.MULTILINE)
        shown = first if machine == "lab1" else first.splitlines()[-1]  # the rest is what `join` wrote
        text = re.sub(r"tcp://[\d.]+:\d+", "tcp://127.0.0.1:0", shown)
        config = self.farms[machine].daemon.config
        config.write_text(config.read_text() + text.replace("db.example", self.place))

    def _begin_head(self, machine):
        folder = self.farms[machine].folder
        head = FarmProcess(folder / "head.log", "head", "--config", str(folder / "farm.toml"))
        self._stack.callback(head.stop)
        head.launch()
        self.heads.append(head)

    def _as_superuser(self, program, *arguments):
        environment = {**os.environ, "PGHOST": str(self.server.folder), "PGPORT": str(self.server.port)}
        done = subprocess.run(
            [programs() / program, *arguments], env={**environment, "PGUSER": "postgres"}, start_new_session=True,
            input=f"{PASSWORD}\n{PASSWORD}\n", capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def states(self):
        """The hosts as lab1 lists them."""
        return {row["name"]: row["state"] for row in json.loads(self.type("lab1", "farm host list --json"))["hosts"]}

    def ready(self):
        """Phones that can be had, as lab1 sees them, with their hosts."""
        devices = self.farms["lab1"].status()["devices"]
        return {row["name"]: row["host"] for row in devices if row["state"] == "ready"}


def commands():
    """The guide's for a database elsewhere, with the machine of each."""
    return re.findall(r"^(db|lab\d)# (.*)$", "\n".join(blocks_of(GUIDE, "console")[1:]), re.MULTILINE)


def test_the_guide_from_one_farm_to_three_hosts(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with ExitStack() as stack:
        farms, bundles = {}, None
        for name in HOSTS:
            farms[name] = stack.enter_context(virtual_farm({f"phone-{name}": "galaxy-s9"}, bundles=bundles))
            bundles = bundles or farms[name].folder / "state" / "bundles" / "objects"
        farms["lab1"].wait_ready(1)
        kept = phones(farms["lab1"])[0].name
        reader = Reader(server, farms, stack)
        (tmp_path / ".pgpass").write_text(f"{reader.place}:farm:farm_admin:{PASSWORD}\n")
        (tmp_path / ".pgpass").chmod(0o600)
        said = {}
        for machine, line in commands():
            if line == "farm status":
                until(lambda: sorted(reader.ready().values()) == list(HOSTS))
                assert reader.ready()[kept] == "lab1"
            said[line] = reader.type(machine, line)
            if "--undo" in line:
                until(lambda: reader.states() == dict.fromkeys(HOSTS, "ok"))
        assert PASSWORD not in "".join(said.values())
        assert re.search(r"^DEVICE +HOST ", said["farm status"], re.MULTILINE)
        assert said["farm shell --on android --devices all -- getprop ro.product.model"].count("SM-G9600") == len(HOSTS)
        until(lambda: reader.states() == {"lab1": "ok"})
        assert {row["host"] for row in farms["lab1"].status()["devices"]} == {"lab1"}
        until(lambda: [each for each in farms["lab2"].status()["problems"] if "removed from the lab" in each])
        url = re.findall(r'^url = "(.*)"$', farms["lab2"].daemon.config.read_text(), re.MULTILINE)[0]
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        logs = [*(farm.daemon.log for farm in farms.values()), *(head.log for head in reader.heads)]
        assert len(reader.heads) == 2
        assert [log for log in logs if "Traceback" in log.read_text(errors="replace")] == []


def test_the_guide_is_short():
    assert len(GUIDE.split()) <= 1000
