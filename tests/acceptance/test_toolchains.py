"""`farm toolchain add|list|remove`: interpreters are believed after they have imported TVM, and bad ones say why."""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from farm import __version__
from farm.bundle.model import Bundle
from farm.bundle.versions import TrialKind, TrialResult, checked_alone, known_trials
from farm.common.errors import Code, ExitCode
from farm.jobs.toolchains import ToolchainFacts, check_pair, examine
from tests.support.errors import raises_code
from tests.support.foreign_build import foreign_build
from tests.support.waiting import HANG_S
from tests.support.whole_farm import Story, refused, until

pytestmark = pytest.mark.farm("galaxy-s9")

FACTS = ToolchainFacts(__version__, "0.27.0.post1", {"apache-tvm-ffi": "0.1.14.post1"})


def script(folder, text, name="python"):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def second_python(folder):
    """An interpreter at another path, as another environment's would be."""
    return script(folder, f'exec {sys.executable} "$@"', "second-python")


async def test_an_interpreter_says_its_versions():
    facts = await examine(Path(sys.executable))
    assert facts.farm == __version__
    assert facts.tvm
    assert facts.packages["apache-tvm-ffi"]


BAD = {
    "no path": (lambda folder: folder / "nothing", "there is no", "bin/python"),
    "a folder": (lambda folder: folder, "is a folder", "bin/python"),
    "not executable": (lambda folder: Path(__file__), "is not executable", "bin/python"),
    "not a program": (lambda folder: script(folder, "").parent / "broken", "does not run", "bin/python"),
    "no tvm": (lambda folder: script(folder, "echo \"ModuleNotFoundError: No module named 'tvm'\" >&2; exit 1"),
               "has no tvm", "pip install"),
    "no farm": (lambda folder: script(folder, "echo \"ModuleNotFoundError: No module named 'farm'\" >&2; exit 1"),
                "has no farm", "pip install"),
    "another farm": (
        lambda folder: script(folder, """echo 'farm-toolchain {"farm": "9.9", "tvm": "1", "packages": {}}'"""),
        f"has farm 9.9, the daemon is farm {__version__}", "pip install",
    ),
    "garbage": (lambda folder: script(folder, "echo 'farm-toolchain {]'"), "something else than versions", ""),
    "nothing at all": (lambda folder: script(folder, ""), "it wrote nothing", "import tvm"),
    "bytes without end": (lambda folder: script(folder, "yes 0123456789"), "was killed", "import tvm"),
    "non-zero": (lambda folder: script(folder, "echo libtvm.so: undefined symbol >&2; exit 3"),
                 "undefined symbol", "import tvm"),
    "a crash": (lambda folder: script(folder, "kill -SEGV $$"), "was killed", "import tvm"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said", "hint"), BAD.values(), ids=BAD)
async def test_one_that_cannot_be_used_says_why_in_one_line(tmp_path, make, said, hint):
    (tmp_path / "broken").write_bytes(b"\x00\x01")
    (tmp_path / "broken").chmod(0o755)
    with raises_code(Code.TOOLCHAIN_REFUSED) as caught:
        await examine(make(tmp_path), limit_s=HANG_S)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in caught.value.hint


async def test_one_that_hangs_is_ended_with_what_it_started(tmp_path):
    python = script(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/pid; trap '' TERM; wait")
    with raises_code(Code.TOOLCHAIN_REFUSED, match=r"did not import TVM within 2 s"):
        await examine(python, limit_s=2)
    child = int((tmp_path / "pid").read_text())
    await asyncio.to_thread(psutil.wait_procs, [psutil.Process(child)] if psutil.pid_exists(child) else [], HANG_S)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_versions_that_nobody_has_tried_are_doubted_and_those_that_are_known_not_to_work_refused():
    bundle = partial(Bundle, "b26", "0" * 64, "arm64-v8a", (), Path(), "default", (), has_opencl=False)
    assert check_pair("new", FACTS, bundle("0.27.0.post1", ffi_version="0.1.14.post1")) == ""
    assert "nobody has tried it" in check_pair("new", FACTS, bundle("9.9", ffi_version="0.1.14.post1"))
    with raises_code(Code.TOOLCHAIN_REFUSED, match="does not say which TVM"):
        check_pair("new", FACTS, bundle(""))
    assert checked_alone(FACTS.versions, "toolchain new") == ""
    bad = ToolchainFacts(__version__, "0.27.0.post1", {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.15.post2"})
    with raises_code(Code.VERSIONS_UNFIT, match=r"toolchain new cannot work: TVM 0\.27\.0\.post1 with FFI 0\.1\.15"):
        checked_alone(bad.versions, "toolchain new")


def rows(farm):
    return {row["name"]: row for row in json.loads(farm.farm("toolchain", "list", "--json").stdout)["toolchains"]}


def test_one_is_added_used_kept_over_a_restart_and_removed(farm, tmp_path):
    python, story = second_python(tmp_path), Story(farm)
    done = farm.farm("toolchain", "add", "second", "--python", str(python), "--bundle", "virtual")
    assert done.returncode == 0, done.stderr
    assert f"added second: TVM {rows(farm)['default']['tvm']} in {python}, paired with bundle virtual" in done.stdout
    assert story.until("toolchain.added", subject="second")["data"]["python"] == str(python)
    refused(farm.farm("bundle", "remove", "virtual"), ExitCode.USAGE, "toolchain second names it")
    second = farm.folder / "second"
    refused(farm.farm("bundle", "add", str(farm.folder / "bundle"), "--toolchain", "secon"), ExitCode.USAGE, "second")
    added = farm.farm("bundle", "add", str(farm.folder / "bundle"), "--toolchain", "second", "--name", "for-second")
    assert added.returncode == 0, added.stderr
    refused(farm.farm("toolchain", "remove", "second"), ExitCode.USAGE, "for-second")

    farm.daemon.kill()
    farm.daemon.start().close()
    farm.client.close()
    assert rows(farm)["second"]["bundle"] == "virtual"
    farm.wait_ready(1)  # golden kernels ran in it
    until(lambda: rows(farm)["second"]["up"])  # nobody waits for it: the golden kernels are kept ready
    assert not second.exists()
    assert farm.farm("bundle", "remove", "for-second").returncode == 0
    removed = farm.farm("toolchain", "remove", "second")
    assert removed.returncode == 0, removed.stderr
    assert set(rows(farm)) == {"default"}


def test_a_bundle_is_refused_if_its_tvm_and_ffi_are_known_not_to_work_and_doubted_if_nobody_tried_them(farm, tmp_path):
    bad = next(
        each for each in known_trials() if each.kind is TrialKind.SERVER and each.result is not TrialResult.WORKS
    )
    stated = f'tvm_version = "{bad.versions.tvm}"\nffi_version = "{bad.versions.ffi}"\n'
    broken = foreign_build(farm.folder / "bundle", tmp_path / "broken", stated)
    refused(farm.farm("bundle", "add", str(broken)), ExitCode.USAGE, f"cannot work: {bad.versions}", "docs/bundles.md")

    stated = 'tvm_version = "9.9"\nffi_version = "0.9"\n'
    unknown = foreign_build(farm.folder / "bundle", tmp_path / "unknown", stated)
    added = farm.farm("bundle", "add", str(unknown))
    assert added.returncode == 0, added.stderr
    assert "warning: whether bundle unknown with toolchain default works is not known" in added.stderr
    assert "of TVM 9.9 with FFI 0.9" in farm.farm("bundle", "show", "unknown").stdout
    paired = farm.farm("toolchain", "add", "paired", "--python", str(second_python(tmp_path)), "--bundle", "unknown")
    assert paired.returncode == 0, paired.stderr
    assert "warning: whether toolchain paired with bundle unknown works is not known" in paired.stderr
    removed = farm.farm("toolchain", "remove", "paired")
    assert removed.returncode == 0, removed.stderr


def test_names_that_cannot_be_are_refused(farm):
    for name, said in (("default", "stands in the configuration"), ("No Name", "cannot be a toolchain's name")):
        refused(farm.farm("toolchain", "add", name, "--python", sys.executable), ExitCode.USAGE, said)
    refused(farm.farm("toolchain", "remove", "defualt"), ExitCode.USAGE, "did you mean 'default'")
    missing = farm.farm("toolchain", "add", "x", "--python", sys.executable, "--bundle", "virtul")
    refused(missing, ExitCode.USAGE, "did you mean virtual")
    assert set(rows(farm)) == {"default"}
