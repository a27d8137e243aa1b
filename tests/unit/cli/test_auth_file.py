"""`farm auth new -o FILE`: no account without its file, no file without its account."""

import os

import pytest

from farm.cli import auth
from farm.common.errors import HostError, UserError

ANSWER = {"name": "ann", "role": "user", "token": "farm_x"}


def test_what_cannot_be_written_is_known_before_the_account_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(auth, "call", lambda *_, **__: pytest.fail("an account was made"))
    taken = tmp_path / "ann.key"
    taken.write_text("mine")
    with pytest.raises(UserError, match="no account was made"):
        auth.new("ann", "user", web=True, out=taken)
    assert taken.read_text() == "mine"


def test_a_refused_account_leaves_no_file(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise HostError("no")

    monkeypatch.setattr(auth, "call", refused)
    with pytest.raises(HostError):
        auth.new("ann", "user", web=True, out=tmp_path / "ann.key")
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_for_nobody_elses_eyes(tmp_path, monkeypatch):
    monkeypatch.setattr(auth, "call", lambda *_, **__: ANSWER)
    out = tmp_path / "ann.token"
    auth.new("ann", "user", web=True, out=out)
    assert (out.read_text(), out.stat().st_mode & 0o777) == ("farm_x\n", 0o600)


def test_a_token_says_what_it_is_for(monkeypatch, capsys):
    monkeypatch.setattr(auth, "call", lambda *_, **__: ANSWER)
    auth.new("ann", "user", web=True, out=None)
    said = capsys.readouterr()
    assert (said.out, "sign in to the web page with it" in said.err) == ("farm_x\n", True)


def test_a_file_that_cannot_be_written_leaves_no_account(tmp_path, monkeypatch):
    """Nobody has its secret, and the name was taken."""
    asked = []
    monkeypatch.setattr(auth, "call", lambda verb, **_: asked.append(verb) or ANSWER)
    monkeypatch.setattr(auth, "_file_for_secret", lambda _: os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"))
    with pytest.raises(UserError, match="cannot be written: No space left on device"):
        auth.new("ann", "user", web=True, out=tmp_path / "ann.token")
    assert asked == ["auth.new", "auth.revoke"]
