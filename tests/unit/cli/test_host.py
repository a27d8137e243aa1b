"""`farm host`: what is refused before anything changes, and how hosts are listed."""

import pytest
from typer.testing import CliRunner

from farm.cli.main import app
from farm.common.errors import ExitCode
from farm.store.host_token_policy import HostToken

TOKEN = HostToken("00ab" * 4, "lab2", "postgresql://farm_00ab00ab_lab2@db/farm", "secret", "0.0.1", 1, 1e12).text()
HOST = {
    "name": "lab1", "state": "ok", "address": "10.0.0.1:9194", "beat_at": None, "silent_s": 1.0, "phones": 12,
    "version": "1.0", "protocol": 1, "drained": "",
}  # fmt: skip


def refused(*words):
    done = CliRunner().invoke(app, ["host", *words])
    return str(done.exception)


@pytest.mark.parametrize(
    ("config", "words", "said"),
    [
        ("", ("join", "farm-host-nonsense"), "this is no host token"),
        ("", ("join", TOKEN), "the lab 0.0.1"),
        ('[store]\nurl = "postgresql://a@b/c"\n', ("join", TOKEN), "has a database already"),
        ("[lab]\n", ("join", TOKEN, "--write"), "has a [store] or [lab] already"),
        ("", ("token", "lab2"), "names no database of a lab"),
        ("", ("remove", "lab2"), "names no database of a lab"),
        ("", ("token", "Lab Two", "--url", "postgresql://a@b/c"), "cannot be a host's name"),
    ],
)
def test_what_cannot_be_is_said_before_anything_changes(tmp_path, config, words, said):
    file = tmp_path / "farm.toml"
    file.write_text(config)
    assert said in refused(*words, "--config", str(file))
    assert file.read_text() == config
    assert list(tmp_path.iterdir()) == [file]


def test_a_configuration_that_is_not_there_yet_is_no_error_for_the_one_who_writes_it(tmp_path):
    words = ("join", TOKEN, "--config", str(tmp_path / "farm.toml"))
    assert "the lab 0.0.1" in refused(*words, "--write")  # the token's fault, and not that of the file
    assert "cannot read" in refused(*words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("leases", "undo", "said"),
    [
        (0, (), "no phone of lab3 is handed out"),
        (1, (), "no phone of lab3 is handed out; 1 lease there goes on"),
        (2, (), "no phone of lab3 is handed out; 2 leases there go on"),
        (1, ("--undo",), "phones of lab3 are handed out"),
    ],
)
def test_a_drain_says_what_is_true_now(monkeypatch, leases, undo, said):
    monkeypatch.setattr("farm.cli.host.call", lambda *_, **__: {"leases": [{}] * leases})
    assert CliRunner().invoke(app, ["host", "drain", "lab3", *undo]).stdout == f"{said}\n"


def test_hosts_are_listed_with_open_tokens(monkeypatch):
    answer = {
        "own": "lab1",
        "hosts": [HOST, {**HOST, "name": "lab2", "state": "stopped", "silent_s": None, "address": ""}],
        "tokens": [{"name": "lab3", "expires_at": "2026-11-27T10:00:00+00:00", "made_by": "ann"}],
        "problems": ["no head decides"],
    }
    monkeypatch.setattr("farm.cli.host.call", lambda *_, **__: answer)
    done = CliRunner().invoke(app, ["host", "list"])
    assert done.exit_code == ExitCode.OK
    title, one, two, token, problem = done.stdout.splitlines()
    assert problem == "warning: no head decides"
    assert title.split() == ["HOST", "ADDRESS", "STATE", "BEAT", "PHONES", "FARM", "PROTOCOL", "DRAINED"]
    assert one.split() == ["lab1", "(this", "one)", "10.0.0.1:9194", "ok", "1s", "ago", "12", "1.0", "1", "-"]
    assert two.split()[:4] == ["lab2", "-", "stopped", "-"]
    assert token.startswith("a token lets lab3 join until 2026-11-27")
    assert token.endswith("(made by ann)")
