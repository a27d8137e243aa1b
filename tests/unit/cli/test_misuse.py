"""Words that fit no command are told as every other error; help cuts no sentence."""

import subprocess
import sys
from tempfile import TemporaryDirectory

import pytest
import typer

from farm.cli import main as cli
from farm.common.errors import ExitCode
from tests.support.tvm import environment
from tests.support.users import needs_another_user
from tests.support.waiting import HANG_S
from tests.support.whole_farm import refused

MISUSED = """
devise
bench
explain sm8550 x
explain weather x
auth new ann
top --nope
status --socket x
bench m.onnx --wait
bench m.onnx --on
bench m.onnx --on x --half-width nan
bench m.onnx --on x --half-width inf
bench m.onnx --on x --half-width 0.9
tune m.onnx --on x --trials nan
records remove abc
store prune --keep-days -1
demo --repeat 1
shell --on x --after '' id
bench m.onnx --on x --wait ''
bench m.onnx --on x --timeout=
usage --until ''
demo --phones ''
lease acquire --on ''
compare m.onnx --on ''
bench m.onnx --on x --require-offload ''
bench m.onnx --on x --cores ''
bench m.onnx --on x --quiesce=
sweep m.onnx --on x --threads ''
memory m.onnx --on x --runtime ''
compile m.onnx --target ''
tune m.onnx --on x --trials ''
run m.onnx --on x --shape a:[1] --shape ''
ci bench m.onnx --on x --branch '' --commit c
ci bench m.onnx --on x --baseline ''
ci bench m.onnx --on x --fail-if ''
ci bench m.onnx --on x --require-offload 0
board --branch ''
export --device ''
job cancel --user ''
--daemon '' status
bundle add ''
watch j ''
serve --state-dir ''
statsu
"""
OUT_OF_RANGE = """
lease run --on x --for 0.1s -- id
shell --on x --deadline 0.01s id
shell --on x --deadline 99d id
shell --on x --timeout 2d id
bench m.onnx --on x --measure 0.05
lease acquire --on x --for 8d
sustain m.onnx --on x --for 2
top --interval 2h
"""
NO_TIME = """
sustain net.onnx --on a --for soon
bench net.onnx --on x --deadline 5x
shell --on x --wait 5x id
top --interval 5x
trace record x --out f --for 2x
usage --since 5x
reservation add --on x --user y --for 2h --from z
reservation add --on x --user y --for 2h --from +z
lease extend a --for 0
"""
REFUSED = """
demo --hosts 2 --physics --why --repeat 40
demo --hosts 2 --phones oneplus-12+arm64
compile net.onnx --target cpu -o net.so
demo --phones nokia-3310
bench absent.onnx --on android
bench net.onnx --on android --repeat 0
run absent.onnx --on android
run net.onnx --on android --fill sevens
shell --on android -- ''
submit absent.toml
device set pixel
uninstall
store check --state-dir nowhere
records show .
compare bench-0f3a52c7d91e
compare run-0f3a run-77aa --quality data.npz
compare run-0f3a run-77aa --metric top5
compare run-0f3a run-77aa --runtime ort
compare net.onnx net.onnx --on android --metric top5
ci compare net.onnx net.onnx --on android --metric top5
run net.onnx --on android --metric mse
run net.onnx --on host --metric mse
bench net.onnx --on android --repeat 5 --measure 3
bench net.onnx --on android --repeat 5 --remeasure 3
ci bench net.onnx --on android --repeat 5 --measure 3
bench net.onnx --on android --plot --json
bench net.onnx --on android --stats --json
program run timer.toml --on android --plot --json
"""
NO_DAEMON = """
status
device list
shell --on android -- id
watch job-1
logs job-1
"""


@pytest.mark.parametrize(
    ("lines", "code"),
    [(MISUSED, 2), (OUT_OF_RANGE, 2), (NO_TIME, 2), (REFUSED, 2), (NO_DAEMON, 4)],
    ids=["misused", "out of range", "no time", "refused", "no daemon"],
)
def test_what_is_wrong_is_said_in_a_line_with_the_way_out(farm, snapshot, monkeypatch, tmp_path, lines, code):
    monkeypatch.setenv("FARM_SOCKET", str(tmp_path / "absent.sock"))
    (tmp_path / "net.onnx").write_text("no model")
    monkeypatch.chdir(tmp_path)
    said = [farm(line) for line in lines.strip().splitlines()]
    assert [(each.line, each.code, each.out) for each in said] == [(each.line, code, "") for each in said]
    assert not [each for each in said if "Traceback" in each.err]
    snapshot("\n".join(map(str, said)).replace(tmp_path.name, "FOLDER"))


@pytest.mark.parametrize("line", ["", "device"])
def test_a_group_alone_is_asked_for_its_help(farm, line):
    said = farm(line)
    assert (said.code, said.out, said.err.startswith("Usage: farm "), "hint:" in said.err) == (2, "", True, False)


def test_no_description_is_cut(farm, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    tree = typer.main.get_command(cli.app)
    for name in tree.commands:
        if hasattr(tree.get_command(None, name), "commands"):
            said = farm(f"{name} --help")
            assert (said.code, [line for line in said.out.splitlines()[1:] if line.endswith("...")]) == (0, [])


@needs_another_user
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model show {}/m.onnx", "cannot use {}/m.onnx: Permission denied"),
        ("export {}/e.csv", "cannot use {}/e.csv: Permission denied"),
        ("store backup {}/b.db", "cannot write {}/b.db: Permission denied"),
        ("--daemon tcp://127.0.0.1:1 status", "needs a key"),  # the client's file is in the home
    ],
)
def test_a_closed_folder_is_named(words, said):
    with TemporaryDirectory() as closed:  # root's
        done = subprocess.run(
            [sys.executable, "-m", "farm", *words.format(closed).split()], env=environment() | {"HOME": closed},
            user="nobody", group="nogroup", extra_groups=[], cwd="/", capture_output=True, text=True, timeout=HANG_S,
            check=False,
        )  # fmt: skip
    refused(done, ExitCode.USAGE, said.format(closed))
