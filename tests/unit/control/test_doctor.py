"""What the daemon finds wrong with its host, and what is said to do about it."""

import os
from types import SimpleNamespace

import pytest

from farm.common.doctor_findings import FAIL, OK, WARN, Diagnosis
from farm.control.artifact_rules import ArtifactRules
from farm.control.artifacts import ArtifactFolder
from farm.control.verbs.doctor import DoctorHost, host_findings


def health(problem="", server=None):
    return SimpleNamespace(problem=problem, server=server)


SERVER = SimpleNamespace(findings=lambda: [Diagnosis("database clock", WARN, "an hour off", "set it")])


@pytest.fixture
def host(tmp_path):
    def make(*, budget=100, store=None, database="farm.db", limit=100, user="farm-job", **more):
        folder = ArtifactFolder(tmp_path / "artifacts", ArtifactRules(budget_bytes=budget))
        folder.add(b"x" * 50)
        path = tmp_path / database if database else None
        if path:
            path.write_bytes(b"x" * 40)
            path.with_name(f"{database}-wal").write_bytes(b"x" * 20)
            path.with_name(f"{database}.backup").write_bytes(b"x" * 5000)
        looked_at = DoctorHost(folder, store or health(), path, limit, user, tmp_path, **more)
        return {finding.check: finding for finding in host_findings(looked_at)}

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


@pytest.mark.parametrize(
    ("options", "said", "fix"),
    [
        ({"store": health("no space left on device")}, "no space left on device", "free space"),
        ({"damage": lambda: "page 7: never used"}, "farm.db: page 7: never used", ""),
        ({"database": "", "store": health("it is away", SERVER)}, "it is away", "farm writes again by itself"),
    ],
    ids=["full", "damaged", "away"],
)
def test_a_database_that_cannot_be_used_is_a_failure(host, options, said, fix):
    found = host(**options)["database"]
    assert found.verdict == FAIL
    assert found.detail.endswith(said)
    assert fix in found.fix


def test_a_server_is_looked_at(host):
    found = host(database="", store=health(server=SERVER))
    assert (found["database clock"].verdict, "database" in found) == (WARN, False)


def test_workers_without_a_user_of_their_own_are_said(host, monkeypatch):
    for uid, said in ((0, "farm install-service"), (61234, "run it as a service")):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        found = host(user="")["workers"]
        assert found.verdict == WARN
        assert said in found.fix
