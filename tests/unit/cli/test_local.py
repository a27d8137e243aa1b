"""Work in a process with TVM: its result, its errors, and whose fault it is when it ends without either."""

import os
import signal
import sys
import textwrap

import pytest

from farm.cli import local
from farm.cli.local import with_tvm
from farm.common.errors import Code, FarmError, Fault, UserError
from tests.support.errors import raises_code


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Carries out Python code as the work; `answer` in it writes the reply."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(local, "python_with_tvm", lambda: sys.executable)

    def carry_out(code, **more):
        begin = "import json, os, sys, pathlib\nanswer = pathlib.Path(sys.argv[2]).write_text\n"
        (tmp_path / "piece.py").write_text(begin + textwrap.dedent(code))
        return with_tvm("that", "doing that", {"x": 7}, tmp_path, module="piece", **more)

    return carry_out


def test_the_result_and_the_lines_are_told(work):
    lines = []
    made = work(
        """
        print("one")
        print("two")
        asked = json.load(open(sys.argv[1]))
        answer(json.dumps({"result": {"twice": asked["x"] * 2, "do": asked["do"]}}))
        """,
        on_line=lines.append,
    )
    assert made == {"twice": 14, "do": "that"}
    assert lines == ["one\n", "two\n"]


def test_an_error_of_the_work_is_raised_here(work):
    with pytest.raises(UserError, match="no such thing"):
        work("""answer(json.dumps({"error": {"code": "bad_request", "fault": "user", "message": "no such thing"}}))""")


def test_an_exception_is_farms_own_fault_and_is_named(work):
    with pytest.raises(FarmError, match=r"internal error of farm while doing that: KeyError: 'shape'") as caught:
        work("print('[warning] something')\nprint({}['shape'])")
    assert (caught.value.fault, caught.value.code) == (Fault.FARM, "internal")
    assert "Traceback" in caught.value.evidence
    assert "crashed" not in caught.value.message


def test_an_end_without_a_word_is_told_with_its_code(work):
    with pytest.raises(FarmError, match="while doing that: exit code 3"):
        work("os._exit(3)")


@pytest.mark.parametrize("before", ["", 'answer("{\\"result\\": {\\"half")'])
def test_a_signal_is_a_crash_of_tvm(work, before):
    with raises_code(Code.TVM_CRASHED, match=r"TVM crashed \(SIGSEGV\) while doing that") as caught:
        work(f"{before}\nprint('last words', file=sys.stderr, flush=True)\nos.kill(os.getpid(), {int(signal.SIGSEGV)})",
             after_crash="continue")  # fmt: skip
    assert (caught.value.hint, caught.value.evidence) == ("continue", "last words\n")


def test_an_interrupt_ends_the_work_too(work):
    pids = []

    def interrupted(line):
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work("import time\nprint(os.getpid(), flush=True)\ntime.sleep(600)", on_line=interrupted)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
