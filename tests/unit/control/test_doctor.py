"""What the daemon finds wrong with its host, and what is said to do about it."""

import os

import pytest

from farm.common.doctor_findings import FAIL, OK, WARN, Diagnosis
from farm.control.artifact_rules import ArtifactRules
from farm.control.artifacts import ArtifactFolder
from farm.control.verbs.doctor import DoctorHost, host_findings


class Health:
    problem = ""
    server = None


class Full:
    problem = "no space left on device"
    server = None


class Server:
    @staticmethod
    def findings():
        return [Diagnosis("database clock", WARN, "an hour off", "set it")]


class Served:
    problem = ""
    server = Server()


class ServedAndAway(Served):
    problem = "the database server cannot be reached"


@pytest.fixture
def host(tmp_path):
    def make(*, budget=100, store=Health, database="farm.db", limit=100, user="farm-job"):
        folder = ArtifactFolder(tmp_path / "artifacts", ArtifactRules(budget_bytes=budget))
        folder.add(b"x" * 50)
        path = tmp_path / database if database else None
        if path:
            path.write_bytes(b"x" * 40)
            path.with_name(f"{database}-wal").write_bytes(b"x" * 20)
            path.with_name(f"{database}.backup").write_bytes(b"x" * 5000)
        return {
            finding.check: finding
            for finding in host_findings(DoctorHost(folder, store(), path, limit, user, tmp_path))
        }

    return make


def test_a_sound_host(host):
    found = host()
    assert {check: finding.verdict for check, finding in found.items()} == {
        "state folder": OK, "artifacts": OK, "database": OK, "workers": OK,
    }  # fmt: skip
    assert found["state folder"].detail.endswith("GB free")
    assert "run as farm-job" in found["workers"].detail


def test_what_is_nearly_full_is_said_with_the_key_to_raise(host):
    found = host(budget=52, limit=61)
    assert (found["artifacts"].verdict, found["database"].verdict) == (WARN, WARN)
    assert "budget_gb" in found["artifacts"].fix
    assert "max_mb" in found["database"].fix


def test_a_database_that_cannot_write_is_a_failure(host):
    found = host(store=Full)["database"]
    assert (found.verdict, found.detail) == (FAIL, "no space left on device")
    assert "free space" in found.fix


def test_a_database_with_broken_pages_is_a_failure(tmp_path):
    path = tmp_path / "farm.db"
    path.touch()
    folder = ArtifactFolder(tmp_path / "artifacts", ArtifactRules())
    broken = DoctorHost(folder, Health(), path, 100, "farm-job", tmp_path, damage=lambda: "page 7: never used")
    found = {finding.check: finding for finding in host_findings(broken)}["database"]
    assert (found.verdict, found.detail) == (FAIL, f"{path}: page 7: never used")


def test_a_server_is_looked_at(host):
    found = host(database="", store=Served)
    assert (found["database clock"].verdict, "database" in found) == (WARN, False)


def test_a_server_that_is_away_is_a_failure_that_ends_by_itself(host):
    found = host(database="", store=ServedAndAway)["database"]
    assert (found.verdict, found.detail) == (FAIL, "the database server cannot be reached")
    assert "farm writes again by itself" in found.fix


def test_workers_without_a_user_of_their_own_are_said(host, monkeypatch):
    for uid, said in ((0, "farm install-service"), (61234, "run it as a service")):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        found = host(user="")["workers"]
        assert found.verdict == WARN
        assert said in found.fix
