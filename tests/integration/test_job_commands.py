"""What people do with jobs that they submitted earlier: look, cancel many, fetch what came out."""

import json

import numpy as np
import pytest

from farm.common.errors import ExitCode
from tests.support.whole_farm import refused

CONFIG = """
[user.root]
jobs = 5
"""

pytestmark = pytest.mark.farm("oneplus-12", config=CONFIG)


def held(farm, *options):
    done = farm.farm("shell", "--on", "android", "--hold", *options, "--", "true")
    assert done.returncode == 0, done
    return done.stdout.split()


def ended(farm, line="echo said"):
    done = farm.farm("shell", "--on", "android", "--json", "--", line)
    (result,) = json.loads(done.stdout)["results"]
    return result["job"]


def test_many_are_cancelled_at_once_and_counted(farm):
    several = farm.farm("shell", "--on", "android", "--hold", "--devices", "all", "--json", "--", "true")
    array = json.loads(several.stdout)
    assert farm.farm("job", "cancel", "--array", array["jobs"][0]["array"]).stdout == "cancelled 1 job\n"
    alone = held(farm) + held(farm)
    assert farm.farm("job", "cancel", "--mine", "--state", "queued").stdout == "cancelled 0 jobs\n"
    assert farm.farm("job", "cancel", "--state", "held").stdout == "cancelled 2 jobs\n"
    assert json.loads(farm.farm("job", "show", alone[0], "--json").stdout)["job"]["state"] == "cancelled"
    farm.client.call("job.submit", spec={"kind": "shell", "on": "android", "command": "true", "hold": True}, key="k1")
    assert farm.farm("job", "cancel", "--key", "k1").stdout == "cancelled 1 job\n"
    refused(farm.farm("job", "cancel", "--key", "k2"), ExitCode.USAGE, "'k2'")
    refused(farm.farm("job", "cancel", "--state", "done"), ExitCode.USAGE, "has ended")
    refused(farm.farm("job", "cancel", alone[0], "--mine"), ExitCode.USAGE, "at once")


def test_an_order_about_an_ended_job_says_that_nothing_was_done(farm):
    job = ended(farm)
    for order in ("cancel", "hold", "resume"):
        done = farm.farm("job", order, job)
        assert (done.returncode, done.stdout) == (0, f"{job} is done: nothing was done\n")


def test_an_attempt_that_never_was_is_refused(farm):
    refused(farm.farm("logs", ended(farm), "--attempt", "5"), ExitCode.USAGE, "has had 1 attempt")


def test_over_the_quota_is_not_allowed(farm):
    for _ in range(5):
        held(farm)
    waiting = ("shell", "--on", "android", "--hold", "--", "true")
    refused(farm.farm(*waiting), ExitCode.NOT_ALLOWED, "limit of 5")
    assert farm.farm("job", "cancel", "--mine").stdout == "cancelled 5 jobs\n"
    refused(farm.farm("shell", "--on", "android", "--priority", "9", "--", "true"), ExitCode.NOT_ALLOWED, "priority")


def test_outputs_are_fetched_later(farm, model, tmp_path):
    ran = json.loads(farm.farm("run", str(model), "--on", "android", "--json").stdout)
    job = ran["results"][0]["job"]
    assert farm.farm("job", "output", job, "-o", str(tmp_path / "out.npz")).returncode == 0
    refused(
        farm.farm("job", "output", job, "-o", str(tmp_path / "out.pftrace")), ExitCode.USAGE, "a run job has no trace"
    )
    assert np.load(tmp_path / "out.npz").files
    page = farm.farm("job", "show", job).stdout
    assert model.name in page
    assert "{" not in page
    assert farm.farm("job", "output", ended(farm), "-o", str(tmp_path / "said")).returncode == 0
    assert (tmp_path / "said").read_text() == "said\n"
    (waiting,) = held(farm)
    refused(farm.farm("job", "output", waiting, "-o", str(tmp_path / "none")), ExitCode.USAGE, waiting)
