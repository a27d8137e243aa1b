"""A tune attempt's pool on a whole farm: phones come, go and are given away; the run continues."""

import json
import os
from pathlib import Path

import pytest

from tests.support.whole_farm import Story, phones, plug_all, running_farm, until_ready

WORKER = Path(__file__).with_name("pool_worker")


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(WORKER), prepend=os.pathsep)
        with running_farm("oneplus-12", "oneplus-12", "galaxy-s9") as farm:
            yield farm


@pytest.fixture
def farm(whole):
    plug_all(whole)
    until_ready(whole)
    return whole


class Run:
    """A tune job whose worker does what it is told."""

    def __init__(self, farm, path, **spec):
        self.farm = farm
        self.orders = path / "orders"
        self.orders.touch()
        self.orders.chmod(0o644)
        self.pair = [each.name for each in phones(farm) if each.name.startswith("oneplus-12")]
        self.story = Story(farm)
        model = farm.client.put_artifact(b"a model")
        wanted = {"kind": "tune", "on": "sm8650", "devices": 2, "model": model, "trials": 1, **spec}
        answer = farm.client.call("job.submit", spec={**wanted, "name": str(self.orders)}, key="", must_match=False)
        (row,) = answer["jobs"]
        self.id, self.warnings = row["id"], answer["warnings"]

    def tell(self, line):
        with self.orders.open("a") as file:
            file.write(line + "\n")

    def step(self, step, **facts):
        """The worker's next report of that step."""
        return self.story.until("job.progress", subject=self.id, step=step, **facts)["data"]

    def sees(self, *names):
        """Until the worker has just these phones."""
        while sorted((seen := self.step("pool"))["seen"]) != sorted(names):
            pass
        return seen

    def row(self):
        return self.farm.client.call("job.show", job=self.id)

    def leases(self):
        return {
            each["device"]: each["id"]
            for each in self.farm.client.call("lease.list")["leases"]
            if each["job"] == self.id
        }

    def end(self):
        self.tell("end")
        self.story.until("attempt.ended")
        self.story.until("lease.released")
        return self.row()


@pytest.fixture
def run(farm, tmp_path):
    job = Run(farm, tmp_path)
    yield job
    if job.row()["job"]["ended_at"] is None:
        farm.client.call("job.cancel", job=job.id)
        job.story.until("job.cancelled", subject=job.id)


def phone_of(farm, name):
    return next(each for each in phones(farm) if each.name == name)


def test_one_job_has_both_phones_and_goes_on_without_its_first(farm, tmp_path):
    run = Run(farm, tmp_path)
    run.sees(*run.pair)
    assert set(run.leases()) == set(run.pair)
    shown = run.row()
    assert len(shown["attempts"]) == 1
    assert shown["job"]["waits"] == ""
    first = shown["attempts"][0]["device"]
    lease = run.leases()[first]
    farm.lab.unplug(phone_of(farm, first).nickname)
    (other,) = set(run.pair) - {first}
    assert run.sees(other)["waits"].startswith("1 of 2 phones")
    assert run.row()["job"]["waits"].startswith("1 of 2 phones")
    if lease not in [event["subject"] for event in run.story.events if event["kind"] == "lease.released"]:
        run.story.until("lease.released", subject=lease)
    run.tell(f"open {lease}")
    assert run.step("refused")["code"] == "not_in_pool"
    farm.lab.plug(phone_of(farm, first).nickname)
    assert run.sees(*run.pair)["waits"] == ""
    assert run.leases()[first] != lease
    run.step("used", on=first)
    ended = run.end()
    assert ended["job"]["state"] == "done"
    assert len(ended["attempts"]) == 1
    assert sorted(ended["result"]["devices"]) == sorted(run.pair)
    assert run.leases() == {}


def test_a_phone_that_is_given_back_goes_to_who_waits_and_returns(farm, run):
    run.sees(*run.pair)
    given = run.pair[1]
    answer = farm.client.call("job.submit", spec={"kind": "shell", "on": given, "command": "echo mine"})
    (row,) = answer["jobs"]
    assert f"{given}: held by" in farm.client.call("job.show", job=row["id"])["job"]["waits"]
    run.tell(f"give {given}")
    run.story.until("attempt.started", job=row["id"], device=given)
    assert run.story.until("job.done")["subject"] == row["id"]
    run.sees(*run.pair)


def test_a_draining_phone_is_given_back_and_comes_again(farm, run):
    run.sees(*run.pair)
    left, other = run.pair
    farm.client.call("device.service", device=left, service="draining")
    run.sees(other)
    assert left not in run.leases()
    farm.client.call("device.service", device=left, service="in")
    run.sees(*run.pair)


def test_a_kicked_phone_stays_away_from_the_run(farm, run):
    run.sees(*run.pair)
    left, other = run.pair
    farm.client.call("lease.kick", device=left)
    seen = run.sees(other)
    assert seen["waits"].startswith("1 of 2 phones")
    assert left not in run.leases()
    nickname = phone_of(farm, other).nickname
    farm.lab.unplug(nickname)
    run.sees()
    farm.lab.plug(nickname)
    run.sees(other)


def test_worker_and_daemon_may_die(farm, run):
    run.sees(*run.pair)
    run.tell("die")
    run.story.until("attempt.ended", state="failed")
    run.orders.write_text("")
    run.sees(*run.pair)
    farm.daemon.kill()
    farm.daemon.start().close()
    run.sees(*run.pair)
    assert [each["state"] for each in run.row()["attempts"]] == ["failed", "interrupted", "running"]
    assert set(run.leases()) == set(run.pair)
    farm.client.call("job.cancel", job=run.id)
    run.story.until("attempt.ended", state="cancelled")
    for _ in run.pair:
        run.story.until("lease.released")
    assert run.leases() == {}


def test_a_lease_for_tuning_is_one_that_yields(farm):
    name = next(each.name for each in phones(farm) if each.name.startswith("sm-g"))
    acquired = farm.farm("lease", "acquire", "--on", name, "--tuning", "--json")
    assert acquired.returncode == 0, acquired
    lease = json.loads(acquired.stdout)["lease"]
    (row,) = [each for each in farm.client.call("lease.list")["leases"] if each["id"] == lease]
    assert row["lease_class"] == "tune"
    assert farm.client.call("lease.show", lease=lease)["yield_wanted"] is False
    assert farm.farm("lease", "release", lease).returncode == 0
