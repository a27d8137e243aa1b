"""A lab restored from a backup: its hosts say so, fences still grow, and what the backup knows ends once."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from farm.common.errors import ExitCode
from tests.support import postgres
from tests.support.needs import need
from tests.support.whole_farm import phones, refused, until
from tests.support.whole_lab import GO, WAIT, whole_lab

LIMIT_S = 300.0
WENT_BACK = "database has gone back in time"
pytestmark = pytest.mark.timeout(LIMIT_S)


class Lab:
    """A head and a host with a phone; `joins` adds the second host."""

    def __init__(self, lab):
        self.lab, self.server = lab, lab.server
        self.head = lab.head()
        self.head.decides()
        self.farms = [lab.host("one", "galaxy-s9")]
        (self.here,) = phones(self.farms[0])

    def joins(self):
        self.farms.append(self.lab.host("two", "galaxy-a55"))
        (self.there,) = phones(self.farms[1])

    def submit(self, on, command):
        spec = {"kind": "shell", "on": on.name, "command": command, "timeout_s": LIMIT_S, "max_attempts": 3}
        (row,) = self.farms[0].client.call("job.submit", spec=spec)["jobs"]
        return str(row["id"])

    def attempts(self, job):
        return [state for (state,) in self.lab.rows(f"SELECT state FROM attempt WHERE job = '{job}' ORDER BY number")]

    def highest_fence(self):
        return self.lab.rows("SELECT max(fence) FROM lease")[0][0]

    def takes_over(self):
        """Another head decides, in the next term."""
        standby = self.lab.head()
        self.head.kill()
        self.head = standby
        standby.decides()

    def ends_since_the_backup(self, job):
        """A job that ran at the backup, and one after it; returns that, and the highest fence."""
        self.here.shell(f"touch {GO}")
        until(lambda: self.attempts(job)[-1] == "done")
        self.takes_over()
        later = self.submit(self.there, "echo later")
        until(lambda: self.attempts(later) == ["done"])
        return later, self.highest_fence()

    def start_hosts(self):
        for farm in self.farms:
            farm.client.close()
            farm.daemon.start().close()

    def goes_on(self, job, later, fence):
        """The job of the backup runs again and ends; the later one is unknown; both hosts work under higher fences."""
        until(lambda: self.attempts(job)[-2:] == ["failed", "running"])
        self.here.shell(f"touch {GO}")
        until(lambda: self.attempts(job)[-2:] == ["failed", "done"])
        refused(self.farms[0].farm("job", "show", later), ExitCode.USAGE, "no job")
        for phone in (self.here, self.there):
            new = self.submit(phone, "echo new")
            until(lambda new=new: self.attempts(new) == ["done"])
        assert self.lab.rows(f"SELECT count(*) FROM lease WHERE fence > {fence} AND armed_at IS NOT NULL")[0][0] >= 3


@pytest.fixture(scope="module")
def lab():
    need("g++", "mksh", "toybox")
    postgres.need()
    with whole_lab() as whole:
        yield Lab(whole)
        until(lambda: not whole.judged())


def test_a_backup_from_before_a_host_joined_is_restored_under_running_hosts(lab):
    job = lab.submit(lab.here, WAIT)
    until(lambda: lab.attempts(job) == ["running"])
    data, backup = lab.server.folder / "data", lab.server.folder / "backup"
    lab.server.stop("fast")
    subprocess.run(["cp", "-a", data, backup], check=True)
    lab.server.start()
    lab.joins()
    later, fence = lab.ends_since_the_backup(job)
    lab.server.stop("fast")
    shutil.rmtree(data)
    backup.rename(data)
    lab.server.start()
    for farm in lab.farms:
        assert farm.daemon.wait() == "exit code 1"
        assert WENT_BACK in farm.daemon.log_end()
        assert "start farm again" in farm.daemon.log_end()
    lab.start_hosts()
    lab.goes_on(job, later, fence)
    assert lab.head.runs


def test_a_dump_is_restored_while_farm_is_stopped(lab):
    job = lab.submit(lab.here, WAIT)
    until(lambda: lab.attempts(job) == ["running"])
    dump, (database,) = lab.server.folder / "dump", lab.lab.rows("SELECT current_database()")[0]
    at = (f"--host={lab.server.folder}", f"--username={lab.server.superuser}", f"--dbname={database}")
    lab.server.run("pg_dump", *at, "--format=custom", f"--file={dump}")
    later, fence = lab.ends_since_the_backup(job)
    for farm in lab.farms:
        farm.daemon.stop()
    lab.head.end()
    lab.server.run("pg_restore", *at, "--clean", dump)
    lab.head = lab.lab.head()
    lab.start_hosts()
    lab.goes_on(job, later, fence)
