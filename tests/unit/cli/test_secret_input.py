"""Secrets of commands: from a file, stdin or a prompt; as an argument they are refused, since `ps` shows them."""

import io
import sys
from pathlib import Path

import pytest

from farm.cli import secret_input
from farm.cli.secret_input import read_token, without_password
from farm.common.errors import Code, UserError
from farm.common.token_text import BUILDER_TOKEN, HOST_TOKEN, token_text
from tests.support.errors import raises_code

SECRET = "postgresql://farm:secret@db/farm"


@pytest.mark.parametrize(
    "line",
    [
        f"host join {token_text(HOST_TOKEN, ['a'])} --write",
        f"builder join {token_text(BUILDER_TOKEN, ['a'])}",
        f"lab init --url {SECRET}",
        f"host token lab2 --url {SECRET}",
        f"host token lab2 --url postgresql://a@b/c --address {SECRET}",
        "host remove lab2 --url 'postgresql://farm@db/farm?password=secret'",
        "export --format mlflow --to https://ann:secret@runs.example",
    ],
)
def test_a_secret_as_an_argument_is_refused_with_the_reason(farm, monkeypatch, line):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: True)  # what builders need
    said = farm(line)
    assert (said.code, "every user of this machine can read" in said.err) == (2, True)
    assert "secret" not in said.err


def test_a_token_comes_from_a_file_stdin_or_a_prompt(tmp_path, monkeypatch):
    (tmp_path / "farm-host-of-today").write_text("in a file\n")
    assert read_token(tmp_path / "farm-host-of-today") == "in a file\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("in a pipe\n"))
    assert read_token(None) == "in a pipe\n"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(secret_input, "getpass", lambda prompt: f"typed at {prompt}")
    assert read_token(None) == "typed at token: "


def test_what_is_no_token_and_no_file_is_refused():
    with raises_code(Code.SECRET_IN_ARGUMENT):
        read_token(Path(token_text(HOST_TOKEN, ["a"])))
    with pytest.raises(UserError, match="cannot be read"):
        read_token(Path("absent"))


@pytest.mark.parametrize("url", ["", "postgresql://farm@db1,db2:5433/farm?passfile=/a", "postgresql://farm@[::1]/farm"])
def test_a_url_without_a_password_passes(url):
    assert without_password(url) == url
