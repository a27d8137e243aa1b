"""Numbers on a whole farm: which of two models is faster, what is stored of a bench, and whom not to trust."""

import json
import os
import random
import shlex
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from farm.common.errors import ExitCode
from farm.zoo import INPUT, Network
from farm.zoo import small_cnn as build
from tests.support.needs import needs
from tests.support.pages import ROOT, blocks, missing, shown
from tests.support.tvm import environment

PHONE = "virtual-1"  # its name in the lab
# A bench would wait for a cool phone; what is said of numbers of a hot one is tested here.
NO_LIMITS = "skin_c = 200\ncpu_c = 200\ngpu_c = 200\nbattery_c = 200\nthrottle = 6\n"
OPEN_GATES = f"[heat.hard]\n{NO_LIMITS}[heat.bench]\n{NO_LIMITS}[heat.end_leases]\n{NO_LIMITS}"
# Of a phone that is throttled hard. How long it works is drawn each time: at a fixed rate stops fall into step with the
# samples, and may all lie between them. Of 20 in the shortest bench each meets a sample with a chance of a half.
STOPPED_S, RUNNING_S = 0.05, (0.01, 0.04)

pytestmark = pytest.mark.farm("oneplus-12", config=OPEN_GATES)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A small network, and the same with several times the work in it."""
    folder = tmp_path_factory.mktemp("models")
    slower = Network("slower", (1, 3, 32, 32))
    x = slower.convolution(INPUT, 3, 16, 3)
    for _ in range(4):
        x = slower.convolution(x, 16, 16, 3)
    x = slower.node("AveragePool", x, kernel_shape=[8, 8], strides=[8, 8])
    slower.node("Softmax", slower.classifier(x, 16, 10), axis=-1)
    for name, model in (("small.onnx", build()), ("slower.onnx", slower.model(10))):
        (folder / name).write_bytes(model.SerializeToString(deterministic=True))
    return folder


def asked(farm, *arguments, code=ExitCode.OK):
    done = farm.farm(*map(str, arguments), "--json", timeout_s=170)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def compared(farm, models):
    def compared(a, b, *options):
        answer = asked(farm, "compare", models / a, models / b, "--on", "android", "--measure", "20", *options)
        (result,) = answer["results"]
        for side in ("a", "b"):
            assert result[side]["max_abs_error"] < 1e-4
        return result["comparison"]

    return compared


def test_a_slower_model_is_called_slower_and_the_other_way_round_faster(compared):
    slower = compared("small.onnx", "slower.onnx")
    assert (slower["answer"], slower["low"] > 1) == ("slower", True)
    faster = compared("slower.onnx", "small.onnx")
    assert (faster["answer"], faster["high"] < 1) == ("faster", True)


def test_a_model_is_never_faster_or_slower_than_itself(compared):
    # Ratios of one model with itself scatter by 7 % where this host has no time (load 14 on 2 cores).
    found = compared("small.onnx", "small.onnx", "--min-effect", "0.2")
    assert found["answer"] in ("same", "cannot tell")
    assert found["needed_pairs"] > 0


def bench(farm, models, *options):
    return asked(farm, "bench", models / "small.onnx", "--on", "android", "--measure", "3", *options)["results"][0]


def test_benches_are_kept_by_their_model_and_compared(farm, models):
    before = farm.farm("history", "small.onnx")
    assert (before.returncode, "nothing called small.onnx was measured" in before.stderr) == (ExitCode.USAGE, True)
    first, second = (bench(farm, models, "--remeasure", "0") for _ in range(2))
    assert first["certificate"]["reference"]["nominal_of"] == "this run"
    if first["verdict"] != "rejected":  # this host had time
        assert second["certificate"]["reference"]["nominal_s"] == first["certificate"]["reference"]["median_s"]
    for name in ("small.onnx", first["certificate"]["model_sha256"], models / "small.onnx"):
        (line,) = asked(farm, "history", name)["lines"]
        assert [row["job"] for row in line["results"]] == [first["job"], second["job"]]
        assert [row["verdict"] for row in line["results"]] == [first["verdict"], second["verdict"]]
        assert line["epoch"] == first["identity"]["fingerprint"]
        assert line["changes"] == []
    assert asked(farm, "history", "small.onnx", "--device", first["device"])["lines"]
    assert first["job"] in farm.farm("history", "small.onnx", "--plot").stdout
    if "rejected" in (first["verdict"], second["verdict"]):  # this host had no time
        refused = farm.farm("compare", first["job"], second["job"])
        assert (refused.returncode, "is rejected" in refused.stderr) == (ExitCode.USAGE, True)
        return
    stored = asked(farm, "compare", first["job"], second["job"])
    assert "not_in_turns" in {reason["code"] for reason in stored["comparison"]["reasons"]}
    assert stored["comparison"]["pairs"] == 0


def test_what_cannot_be_compared_is_refused(farm, models):
    for arguments, said in (
        ((models / "small.onnx", models / "slower.onnx"), "no phones are named to compare them on"),
        ((models / "small.onnx", "--on", "android"), "nothing differs"),
        (("bench-none", "bench-1"), "there is no job 'bench-none'"),
        ((models / "small.onnx", "nosuch.onnx", "--on", "android"), "nosuch.onnx does not exist"),
    ):
        done = farm.farm("compare", *map(str, arguments))
        assert (done.returncode, said in done.stderr) == (ExitCode.USAGE, True), done.stderr


@contextmanager
def stopped_now_and_then(lab):
    """What a phone does that is held down: it works for a while, then not at all."""
    over = threading.Event()

    def work():
        while not over.is_set():
            lab.server_hang(PHONE)
            over.wait(STOPPED_S)
            lab.fault(PHONE, "server_resume")
            over.wait(random.uniform(*RUNNING_S))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_phone_that_is_held_down_is_not_trusted(farm, models):
    with stopped_now_and_then(farm.lab):
        result = bench(farm, models, "--remeasure", "1")
    certificate = result["certificate"]
    assert result["verdict"] != "trusted"
    assert certificate["reasons"]
    assert len(certificate["tries"]) == 2
    assert not any(each["verdict"] == "trusted" for each in certificate["tries"])
    asked(
        farm, "bench", models / "small.onnx", "--on", "android", "--repeat", "3", "--require", "trusted",
        code=ExitCode.FAILED,
    )  # fmt: skip


def test_a_phone_that_says_it_is_throttled_is_not_trusted(farm, models):
    farm.lab.heat(PHONE, 60.0)
    try:
        result = bench(farm, models)
    finally:
        farm.lab.cool(PHONE)
    certificate = result["certificate"]
    # Of either moment: a host that has no time at one of them leaves it unknown.
    assert any((certificate["conditions"][when]["throttle_status"] or 0) > 0 for when in ("before", "after"))
    assert "throttled" in [reason["code"] for reason in certificate["reasons"]]
    assert len(certificate["tries"]) == 1  # the next try would have met the same


CI_PAGE, CI = ROOT / "docs" / "scripts.md", "Checks in CI"
CI_CUT = {"sustain": ("--for", "5"), "energy": ("--measure", "12")}


@pytest.fixture
def repository(tmp_path, models):
    """Its model becomes several times slower in v2; one commit before does not build."""
    folder = tmp_path / "repository"
    git(folder, "init", "-q", "-b", "main", ".")
    for version, model in (
        ("v1", "small"), ("broken", "small"), ("v1.2", "small"), ("v2", "slower"), ("v3", "slower"),
    ):  # fmt: skip
        (folder / "Makefile").write_text(f"net.onnx: {'absent' if version == 'broken' else ''}\n")
        (folder / "net.onnx").write_bytes((models / f"{model}.onnx").read_bytes())
        (folder / "version").write_text(version)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", version)
        git(folder, "tag", version)
    return folder


def git(folder, *command, **options):
    folder.mkdir(exist_ok=True)
    named = ("-c", "user.name=ann", "-c", "user.email=ann@example.com", *command)
    return subprocess.run(["git", *named], cwd=folder, check=True, capture_output=True, text=True, **options).stdout


def variables(farm):
    of_ci = ("GITHUB", "GITLAB")
    return {name: value for name, value in environment().items() if not name.startswith(of_ci)} | {
        "FARM_SOCKET": str(farm.socket), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip


@pytest.mark.timeout(400)
@needs("git")
def test_checks_in_ci_as_the_page_has_them(farm, models, repository):
    """The page's commands in a repository whose model becomes several times slower."""
    (repository / "new.onnx").write_bytes((models / "slower.onnx").read_bytes())
    git(repository, "checkout", "-q", "-b", "topic", "v1")
    codes = []
    for step in shown(CI_PAGE, CI):
        command = [sys.executable, "-m", *shlex.split(step.command.replace("pixel-7", "android"))]
        if "--on" in command:
            command += CI_CUT.get(command[4], ("--measure", "5"))
        done = subprocess.run(
            command, env=variables(farm), cwd=repository, capture_output=True, text=True, timeout=170, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert not missing(step, done.stdout), (done.stdout, done.stderr)
        codes.append(done.returncode)
    # none of main is there at first, and one is no baseline; no joules by USB; the slower build is found in turns
    good, bad = ExitCode.OK, ExitCode.FAILED
    assert codes == [good, good, bad, good, good, bad, good, good], done.stderr
    (case,) = ET.parse(repository / "farm.xml").getroot().iter("testcase")
    assert (case.get("classname"), [each.tag for each in case]) == ("net.onnx", ["system-out", "skipped"])
    assert "| net.onnx |" in (repository / "farm.md").read_text()
    assert (repository / ".github/actions/farm/action.yml").exists()
    assert (repository / ".gitlab/farm.yml").exists()
    rows = farm.client.call("history.list")["rows"]
    newest = [(row["branch"], row["commit"]) for row in rows if row["name"] == "net.onnx"]
    of_topic = ("topic", git(repository, "rev-parse", "HEAD").strip())
    assert newest == [of_topic, of_topic, of_topic, ("main", "4f2a")]  # sustain, memory, bench


@needs("git")
def test_git_bisect_finds_the_slower_commit_as_the_page_has_it(farm, models, repository):
    script, steps = [each for each in blocks(CI_PAGE, "sh", title=CI) if "bisect" in each or "exit 125" in each]
    (repository.parent / "is-slower.sh").write_text(script)
    (repository.parent / "is-slower.sh").chmod(0o755)
    (repository.parent / "fast.onnx").write_bytes((models / "small.onnx").read_bytes())
    start, run = (shlex.split(line)[1:] for line in steps.splitlines())
    git(repository, *start)
    assert "v2 is the first bad commit" in git(repository, *run, env=variables(farm)).replace(
        git(repository, "rev-parse", "v2").strip(), "v2"
    )
    without_daemon = variables(farm) | {"FARM_SOCKET": "/nowhere"}
    git(repository, "checkout", "-q", "v2")
    assert subprocess.run(["../is-slower.sh"], cwd=repository, env=without_daemon, check=False).returncode == 255


@needs("adb")
def test_tests_with_phones_as_the_page_has_them(farm, models, tmp_path):
    (tests,) = blocks(CI_PAGE, "python", title=CI)
    (tmp_path / "test_page.py").write_text(tests)
    for name, model in (("net.onnx", "small.onnx"), ("main.onnx", "slower.onnx")):
        (tmp_path / name).write_bytes((models / model).read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "farm.pytest_plugin", "--farm-on", "android", "test_page.py"],
        env=environment() | {"FARM_SOCKET": str(farm.socket)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
