"""A farm of root whose workers are somebody else: they work, and reach nothing of the farm's own."""

import subprocess
import sys
from pathlib import Path

import pytest

from farm.jobs.config import JobsConfig
from tests.support.long_bench import bench_under_way
from tests.support.users import needs_another_user
from tests.support.whole_farm import running_farm

NOBODY = 65534
LIMIT_S = 60.0

pytestmark = needs_another_user

LOOK = """
import os, sys
for path in sys.argv[1:]:
    if os.access(path, os.R_OK) or os.access(path, os.W_OK):
        print(path)
"""


def finding(farm):
    (found,) = (row for row in farm.client.call("doctor")["findings"] if row["check"] == "workers")
    return found


@pytest.fixture(scope="module")
def farm():
    with running_farm("galaxy-s9", config='[jobs]\nuser = "nobody"\n', ready=False, other_user=True) as farm:
        closed = finding(farm)
        assert closed["verdict"] == "warn"
        assert closed["fix"].endswith(f"chmod o+x {farm.folder}")
        # The daemon's advice, taken.
        farm.daemon.stop()
        farm.folder.chmod(farm.folder.stat().st_mode | 0o001)
        farm.daemon.start().close()
        farm.wait_ready(1)  # golden kernels were run by nobody's workers
        yield farm


def test_a_model_is_compiled_and_run_by_a_user_in_nobodys_group(farm):
    with bench_under_way(farm) as worker:
        assert {*worker.uids()} == {*worker.gids()}  # those of the job's user
        assert min(worker.uids()) >= JobsConfig().first_uid
        assert Path(worker.cwd()).stat().st_mode & 0o777 == 0o700
        assert f"Groups:\t{NOBODY}" in Path(f"/proc/{worker.pid}/status").read_text()


def test_the_worker_user_reaches_nothing_of_the_farms_own(farm):
    state, run = farm.folder / "state", farm.folder / "run"
    named = (state, state / "adb", state / "adb" / "adbkey", state / "artifacts", state / "logs", state / "work")
    closed = [*named, *state.glob("farm.db*"), *(state / "artifacts").iterdir(), run / "control.sock", run / "adb.sock"]
    assert all(path.exists() for path in closed)
    golden = [*(state / "bundles").rglob("golden/*.npz")]
    assert golden
    opened = [state / "work" / "worker.sock", *golden]
    look = subprocess.run(
        [sys.executable, "-c", LOOK, *map(str, [*closed, *opened])],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert look.stdout.split() == [str(path) for path in opened]
