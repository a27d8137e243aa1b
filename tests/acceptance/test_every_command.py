"""Every command's answers from a real farm: stdout closed, full or unread; narrow, wide and plain terminals.

tests/unit/cli/test_streams.py has the help of every command, and what needs no daemon.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from farm.common.errors import ExitCode
from farm.simulation.virtual_farm import DaemonProcess, VirtualFarm
from tests.support.every_command import STREAMS, TERMINALS, judge_all, leaves
from tests.support.forked_commands import ForkedCommands
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import leftovers, phones

pytestmark = pytest.mark.farm("oneplus-12", "galaxy-a55")

# Command lines that end with 0; names in braces are `facts`.
ANSWERS = """
alias list [--json]
alias set fast soc=sm8650
auth audit [--json]
auth list [--json]
builder kubernetes --image farm:1
builder list [--json]
builder slurm --jobs 2
bundle list [--json]
bundle show {bundle} [--json]
bundle verify {bundle} [--json]
device adb {device} [--json]
device battery {device} [--json]
device list [--json]
device set {device} --label rack=3
device show {device} [--json]
drain --end
explain device {device} [--json]
explain job {held} [--json]
explain key android [--json]
forward list [--json]
history {model} [--json]
history {model} --plot
host list [--json]
job hold {held}
job list [--json]
job output {bench} -o out
job output {shell} -o out
job show {bench} [--json]
job show {held}
job show {tune}
lease extend {lease} --for 30m
lease list [--json]
lease show {lease} [--json]
logs {bench} [--json]
logs {tune} --attempt 1
model show {model} [--json]
poison list [--json]
program show ort [--json]
records best {records} [--json]
records list [--json]
records show {records} [--json]
reload
reservation list [--json]
status [--json]
store check [--json]
store prune
toolchain list [--json]
top --once [--json]
top --once --only absent
usage --since 1h [--json]
usage --by device
watch {bench} [--json]
"""
# Those that end with an error; and those whose end depends on this host: a verdict, what it lacks.
REFUSED = """
alias remove absent
auth new absent --role nonsense
auth revoke absent
bench absent.onnx --on android
builder join nonsense
builder remove absent
builder start --folder absent
builder token ci-3
bundle add absent
bundle build absent --abi armeabi-v7a
bundle promote absent
bundle remove absent
bundle rollback absent
bundle show absent
ci bench absent.onnx --on android
ci compare absent.onnx absent2.onnx --on android
ci energy absent.onnx --on android
ci init nonsense
ci memory absent.onnx --on android
ci sustain absent.onnx --on android
compare {bench} absent
compare {bench} {bench}
compile absent.onnx --target rpi4
device adopt absent
device add no:where
device drain absent
device forget absent
device install {device} absent.apk
device maintain absent
device power-cycle absent
device quarantine absent --reason test
device reboot absent
device release absent
device screenshot absent out.png
device show absent
explain device absent
explain job absent
forward add absent tcp:1 tcp:2
forward remove absent tcp:1
host drain absent
host join nonsense
host remove absent --url postgresql://farm@127.0.0.1:1/farm
host token absent --url postgresql://farm@127.0.0.1:1/farm
job cancel absent
job output absent -o out
job resume absent
lease acquire --on soc=absent
lease kick absent
lease release absent
lease run --on soc=absent -- true
logs absent
model import absent.onnx
memory absent.onnx --on android
energy absent.onnx --on android
untethered absent.toml --on android
sweep absent.onnx --on android --threads 1,2
sustain absent.onnx --on android --for 1m
model make absent
poison forget absent
program make ort .
program pack absent.toml -o out
program run absent.toml --on android
records export absent -o out
records merge {records} absent
records remove absent
reservation add --on soc=sm8650 --user ann --for nonsense
reservation remove absent
run absent.onnx --on android
shell --on soc=absent -- true
lab config
lab create --listen 203.0.113.9
lab init --url postgresql://farm@127.0.0.1:1/farm
store backup /absent/farm.sqlite
store restore /absent/farm.sqlite
submit absent.toml
toolchain add absent --python /absent/python
toolchain remove absent
trace record absent
trace show absent
tune absent.onnx --on android
watch absent
"""
EITHER = """
board -o out
compare {bench} {again} [--json]
device pull {device} /proc/version out
doctor [--json]
export --format csv -o out
history absent.onnx
"""
# What takes a phone for each run: on some streams only.
WORK = """
bench {model} --on {device} --repeat 5
memory {model} --on {device} --measure 1
sweep {model} --on {device} --cores 0x1,0x2 --measure 1
sustain {model} --on {device} --for 5s
run {model} --on {device} --json
shell --on {device} -- echo hello
shell --on {device} --detach -- true
"""
# The whole farm's; and what tests/unit/cli/test_streams.py runs.
BESIDE = {"serve", "gate", "head", "demo", "uninstall"}
UNIT = {"completions", "demo fault", "install-service"}
SOME_STREAMS, SOME_TERMINALS = (*STREAMS[:3], STREAMS[-1]), TERMINALS[:1]


def lines_of(text: str) -> list[str]:
    """Command lines; `[--json]` is one with and one without."""
    lines = text.strip().splitlines()
    return [
        each
        for line in lines
        for each in dict.fromkeys((line.replace(" [--json]", ""), line.replace("[--json]", "--json")))
    ]


@pytest.fixture(scope="module")
def facts(whole: VirtualFarm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Names of what there is to ask about."""
    model = tmp_path_factory.mktemp("model") / "dense.onnx"
    model.write_bytes(dense_onnx())
    device, other = (each.name for each in phones(whole))

    def job(*words: str) -> str:
        done = whole.farm(*words, timeout_s=300)
        assert done.returncode == 0, done
        return str(whole.client.call("job.list", limit=1)["jobs"][0]["id"])

    found = {"device": device, "model": str(model)}
    found["bench"] = job("bench", str(model), "--on", device, "--repeat", "40")
    found["again"] = job("bench", str(model), "--on", device, "--repeat", "40")
    found["shell"] = job("shell", "--on", device, "--", "seq 1 200")
    found["tune"] = job("tune", str(model), "--on", device, "--trials", "4")
    found["held"] = job("bench", str(model), "--on", "android", "--hold", "--detach")
    found["bundle"] = whole.client.call("bundle.list")["bundles"][0]["name"]
    found["records"] = whole.client.call("records.list")["sets"][0]["set"]
    assert whole.farm("lease", "acquire", "--on", other, "--for", "1h").returncode == 0
    found["lease"] = next(row["id"] for row in whole.client.call("lease.list")["leases"] if row["device"] == other)
    return found


@pytest.fixture(scope="module")
def commands(whole: VirtualFarm, tmp_path_factory: pytest.TempPathFactory) -> ForkedCommands:
    folder = tmp_path_factory.mktemp("commands")
    return ForkedCommands(folder, {"FARM_SOCKET": str(whole.socket), "XDG_CACHE_HOME": str(folder)})


def words_of(line: str, facts: dict[str, str]) -> list[str]:
    return [word.format(**facts) for word in line.split()]


def test_no_command_is_left_out():
    tried = [line.split() for line in lines_of(ANSWERS + REFUSED + EITHER + WORK)]
    left = {path for path in leaves() if path.split() not in [words[: len(path.split())] for words in tried]}
    assert left == BESIDE | UNIT


@pytest.mark.parametrize("line", lines_of(ANSWERS))
def test_an_answer_on_every_stream_and_terminal(commands, facts, line):
    ended = judge_all(commands, words_of(line, facts), SOME_STREAMS)
    assert ended.code == ExitCode.OK
    if line.endswith("--json") and not line.startswith(("logs", "watch")):  # a line for each
        assert isinstance(json.loads(ended.out), dict)


@pytest.mark.parametrize("line", lines_of(REFUSED))
def test_a_refusal_is_one_line_and_a_hint(commands, facts, line):
    ended = judge_all(commands, words_of(line, facts), STREAMS[4:], SOME_TERMINALS)
    assert ended.code not in (ExitCode.OK, ExitCode.NO_DAEMON), ended
    assert [ended.err.count(f"{word}: ") for word in ("error", "  hint")] == [1, 1], ended


@pytest.mark.parametrize("line", lines_of(EITHER))
def test_an_answer_whose_end_depends_on_the_host(commands, facts, line):
    judge_all(commands, words_of(line, facts), SOME_STREAMS)


@pytest.mark.parametrize("line", lines_of(WORK))
def test_work_on_a_phone_on_some_streams(commands, facts, line):
    assert judge_all(commands, words_of(line, facts), STREAMS[:2], SOME_TERMINALS).code == ExitCode.OK


def shell(farm: VirtualFarm, line: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"FARM_SOCKET": str(farm.socket), "FARM": f"{sys.executable} -m farm"}
    return subprocess.run(["bash", "-c", line], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "line", ["job list --json", "logs {bench}", "logs {shell} --json", "top --json", "logs -f {endless}"]
)
def test_a_reader_that_leaves_after_a_line_ends_the_command(whole, facts, line):
    """Also one that would continue: with the next line at the latest."""
    spec = {"kind": "shell", "on": facts["device"], "command": "while sleep 0.2; do echo line; done"}
    endless = whole.client.call("job.submit", spec=spec)["jobs"][0]["id"] if "endless" in line else ""
    words = " ".join(words_of(line, facts | {"endless": endless}))
    done = shell(whole, f"$FARM {words} | head -1; exit ${{PIPESTATUS[0]}}")
    if endless:
        whole.client.call("job.cancel", job=endless)
    assert (done.returncode, done.stderr) == (ExitCode.OK, ""), done


def test_the_daemon_does_not_need_its_streams(tmp_path):
    daemon = DaemonProcess(tmp_path)
    daemon.wrapper = ("bash", "-c", 'exec "$@" >&- 2>/dev/full <&-', "farm")
    with daemon.start() as client:
        assert client.call("status")["devices"] == []
    daemon.stop()
    assert daemon.wait() == "exit code 0"
    assert leftovers(tmp_path) == []


def test_a_demo_that_cannot_print_ends_and_leaves_nothing():
    with tempfile.TemporaryDirectory(prefix="farm-t-") as folder:
        done = subprocess.run(
            ["bash", "-c", f"exec {sys.executable} -m farm demo --phones galaxy-s9 --trials 0 >/dev/full"],
            env=os.environ | {"TMPDIR": folder}, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == ExitCode.FAILED, done
        assert "error: cannot write to stdout: No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert leftovers(Path(folder)) == []
