"""Answers of another release: a field is missing or further, and no command ends in a traceback.

tests/data/answers has what a daemon at commit 25d57cca said of one phone and its jobs.
"""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from farm.cli.main import app
from farm.common.errors import FarmError, MissingFieldError
from farm.control.client import ControlClient
from farm.control.messages import JOINED_LATER, AnswerFields, Reply, decode_reply, encode_reply

ANSWERS = {path.stem: json.loads(path.read_text()) for path in Path("tests/data/answers").glob("*.json")}
COMMANDS = {
    "status": ["status"], "job.list": ["job", "list"], "job.show": ["job", "show", "j"],
    "device.show": ["device", "show", "d"],
    "lease.list": ["lease", "list"], "host.list": ["host", "list"], "alias.list": ["alias", "list"],
    "bundle.list": ["bundle", "list"], "toolchain.list": ["toolchain", "list"], "auth.list": ["auth", "list"],
    "audit.list": ["auth", "audit"], "poison.list": ["poison", "list"], "records.list": ["records", "list"],
    "reservation.list": ["reservation", "list"], "forward.list": ["forward", "list"],
    "builder.list": ["builder", "list"],
}  # fmt: skip
TOP = {"top": ["top", "--once"], "device list": ["device", "list"]}


def objects(value, path=()):
    """The path of every object of an answer: of lists, the first element."""
    if isinstance(value, dict):
        yield path
        for name, each in value.items():
            yield from objects(each, (*path, name))
    elif isinstance(value, list) and value:
        yield from objects(value[0], (*path, 0))


def changed(answer):
    """The answer with each field removed in turn, and with a further one in each object."""
    for path in objects(answer):
        for name in (None, *at(answer, path)):
            made = deepcopy(answer)
            if name is None:
                at(made, path)["joined_in_2030"] = {"x": [1]}
            else:
                del at(made, path)[name]
            yield path, name, made


def at(value, path):
    for step in path:
        value = value[step]
    return value


@pytest.fixture
def daemon(monkeypatch):
    """Commands get these answers, as they come from the wire."""
    answers = deepcopy(ANSWERS)

    def ask(self, kind, fields, frames=(), limit_s=0.0):
        if kind not in answers:
            raise FarmError(f"no {kind} was recorded")
        yield decode_reply(encode_reply(Reply("1", answers[kind])))

    monkeypatch.setattr(ControlClient, "_replies", ask)
    monkeypatch.setenv("FARM_SOCKET", "/nowhere/control.sock")
    return answers


def run(words):
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, FarmError | SystemExit), (words, done.exc_info)
    return done


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_missing_or_further_field_is_no_traceback(daemon, kind):
    words = COMMANDS[kind]
    assert run(words).exit_code == 0
    for path, name, made in changed(ANSWERS[kind]):
        daemon[kind] = made
        done = run(words)
        if name is None:
            assert done.exit_code == 0, (path, name, done.exception)


@pytest.mark.parametrize("words", TOP.values(), ids=TOP)
def test_commands_that_put_answers_together(daemon, words):
    run(words)
    for _, _, made in changed(ANSWERS["status"]):
        daemon["status"] = made
        run(words)


def test_a_field_that_joined_later_has_its_value_of_before(daemon):
    for device in daemon["status"]["devices"]:
        del device["read_at"]
    assert run(["status"]).exit_code == 0
    assert AnswerFields()["read_at"] is JOINED_LATER["read_at"]
    with pytest.raises(MissingFieldError, match="no field 'soc'"):
        AnswerFields()["soc"]
