"""`farm auth new -o FILE`: no account without its file, no file without its account."""

import os

from farm.cli import auth
from farm.common.errors import ExitCode, HostError

NEW = "auth new ann --role user --web --out"
ANSWER = {"name": "ann", "role": "user", "token": "farm_x"}


def test_what_cannot_be_written_is_known_before_the_account_is_made(tmp_path, answers, farm):
    (tmp_path / "ann.key").write_text("mine")
    said = farm(f"{NEW} {tmp_path}/ann.key")
    assert (said.code, "no account was made" in said.err, answers.asked) == (ExitCode.USAGE, True, [])
    assert (tmp_path / "ann.key").read_text() == "mine"


def test_a_refused_account_leaves_no_file(tmp_path, answers, farm):
    answers["auth.new"] = HostError("no")
    assert farm(f"{NEW} {tmp_path}/ann.key").err == "error: no\n"
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_for_nobody_elses_eyes(tmp_path, answers, farm):
    answers["auth.new"] = ANSWER
    farm(f"{NEW} {tmp_path}/ann.token")
    out = tmp_path / "ann.token"
    assert (out.read_text(), out.stat().st_mode & 0o777) == ("farm_x\n", 0o600)


def test_a_file_that_cannot_be_written_leaves_no_account(tmp_path, monkeypatch, answers, farm):
    """Nobody has its secret, and the name was taken."""
    answers |= {"auth.new": ANSWER, "auth.revoke": ANSWER}
    monkeypatch.setattr(auth, "_file_for_secret", lambda _: os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"))
    assert "cannot be written: No space left on device" in farm(f"{NEW} {tmp_path}/ann.token").err
    assert [kind for kind, _ in answers.asked] == ["auth.new", "auth.revoke"]
