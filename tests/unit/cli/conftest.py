"""Commands in this process, with a daemon's answers made up."""

import shlex
import time
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from farm.cli.main import main
from farm.control.client import ControlClient
from farm.control.messages import Reply, decode_reply, encode_reply


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a command."""

    line: str
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        ended = f"[exit code {self.code}]\n" if self.code else ""
        return f"$ farm {self.line}\n{self.out}{self.err}{ended}"


class Answers(dict[str, Any]):
    """By verb: fields, a function of what was asked, an error, or a list with the items of a stream and its end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def replies(self, kind, fields):
        self.asked.append((kind, dict(fields)))
        answer = self[kind]
        if callable(answer):
            answer = answer(**fields)
        if isinstance(answer, Exception):
            raise answer
        *items, end = answer if isinstance(answer, list) else [answer]
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield decode_reply(encode_reply(Reply("1", item, more=True)), kind)
        yield decode_reply(encode_reply(Reply("1", end)), kind)


@pytest.fixture
def answers(monkeypatch):
    """What the daemon answers; `answers.asked` is what it was asked, in order."""
    answers = Answers()
    monkeypatch.setattr(ControlClient, "_replies", lambda _, kind, fields, *__, **___: answers.replies(kind, fields))
    monkeypatch.setenv("FARM_SOCKET", "/nowhere/control.sock")
    return answers


@pytest.fixture
def at_utc(monkeypatch):
    """Local time is UTC, and nothing but 100 columns is known of the terminal."""
    with monkeypatch.context() as patch:
        for name, value in {"TZ": "UTC", "COLUMNS": "100", "LANG": "C.UTF-8"}.items():
            patch.setenv(name, value)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def farm(at_utc, capsys, tmp_path):
    """Run a command: `str` of what it said is its line and all that it printed."""

    def farm(line):
        capsys.readouterr()
        with mock.patch("sys.argv", ["farm", *shlex.split(line)]), pytest.raises(SystemExit) as ended:
            main()
        out, err = (text.replace(str(tmp_path), "TMP") for text in capsys.readouterr())
        return Said(line.replace(str(tmp_path), "TMP"), int(ended.value.code or 0), out, err)

    return farm
