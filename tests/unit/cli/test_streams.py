"""Every command's help, and some answers, where stdout is closed, full or unread, on narrow and on plain terminals."""

import fcntl
import os
import subprocess
import sys

import pytest

from farm.common.errors import ExitCode
from tests.support.every_command import STREAMS, TERMINALS, judge_all, leaves, paths
from tests.support.forked_commands import KEPT, LEFT, Ended, ForkedCommands, Streams

HELP = [(*path.split(), "--help") for path in ("", *paths())]
# What needs neither a daemon nor a phone.
ANSWERS = [
    ("--version",), ("demo", "fault"), ("completions", "zsh"), ("status",), ("status", "--json"),
    ("install-service", "--print"), ("bench", "absent.onnx", "--on", "android"), ("devise",),
]  # fmt: skip


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    return ForkedCommands(folder, {"FARM_SOCKET": str(folder / "absent.sock")})


def test_the_tree_was_walked():
    assert {"status", "device list", "demo fault"} <= set(leaves())
    assert "device" in set(paths()) - set(leaves())


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_no_stream_and_no_terminal_makes_a_traceback(commands, words):
    judge_all(commands, words)


@pytest.mark.parametrize(("number", "words"), list(enumerate(HELP)), ids=[" ".join(words) for words in HELP])
def test_no_help_does(commands, number, words):
    """One stream or one terminal for each: what prints is the same for all, and every help does."""
    which, at_terminal = divmod(number, 2)
    streams = () if at_terminal else (STREAMS[which % 3],)
    terminals = (TERMINALS[which % len(TERMINALS)],) if at_terminal else ()
    judge_all(commands, words, streams, terminals, plain=Ended(ExitCode.OK, "its help", ""))


def farm(line, tmp_path):
    environ = os.environ | {"FARM_SOCKET": str(tmp_path / "absent.sock"), "FARM": f"{sys.executable} -m farm"}
    return subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("$FARM demo fault >&-", 1, "error: cannot write to stdout: Bad file descriptor"),
        ("$FARM demo fault >/dev/full", 1, "error: cannot write to stdout: No space left on device"),
        ("$FARM demo fault 2>&1 >/dev/full 2>&-", 1, ""),
        ("$FARM demo fault <&- >&- 2>&-", 1, ""),
        ("$FARM status 2>/dev/full", 4, ""),
        ("$FARM demo fault | head -1; exit ${PIPESTATUS[0]}", 0, ""),
        ("$FARM bench --help | head -1; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_a_new_interpreter_ends_likewise(tmp_path, line, code, said):
    done = farm(line, tmp_path)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done


def test_a_full_pipe_that_does_not_block_is_waited_for(tmp_path):
    """As behind a program that made the pipe non-blocking for itself."""
    reader, writer = os.pipe()
    room = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    process = subprocess.Popen(
        [sys.executable, "-m", "farm", "bench", "--help"], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    with process, os.fdopen(reader, "rb") as pipe:
        first = os.read(reader, 1)  # it has begun, and soon the pipe is full
        page = first + pipe.read()
        assert (process.wait(), process.stderr.read()) == (0, "")
    assert len(page) > room


def test_characters_that_the_encoding_lacks_are_escaped(tmp_path):
    done = farm("PYTHONIOENCODING=ascii $FARM model show $'gr\\u00f6\\u00dfe.onnx'", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert r"gr\xf6\xdfe.onnx" in done.stderr


def test_a_reader_that_left_is_no_failure(commands):
    assert commands.run(("demo", "fault"), Streams(stdout=LEFT, stderr=KEPT)).code == 0
