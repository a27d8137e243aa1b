"""Runtimes without and with an NDK: what docs/bundles.md types, phones that use them, and what can go wrong."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farm.bundle.model import Abi, Platform
from farm.common.files import hash_file
from farm.runtime.build import build_from_wheels
from farm.runtime.packages import DownloadError
from farm.runtime.parts import default_cache
from farm.simulation.arm64 import Arm64ToolsError, arm64_folder, installed_versions
from farm.worker.golden import run_golden
from tests.support.forked_commands import run_farm
from tests.support.ndk import CMAKE_MAKERS, installed_tvm, small_checkout, stand_in_ndk
from tests.support.needs import needs
from tests.support.tvm import environment, free_port, wait_for_port
from tests.support.typed import until_printed
from tests.support.whole_farm import ON_PHONE, Story, answer, phones, refused, running_farm, until, until_ready

DOCUMENT = (Path(__file__).parents[2] / "docs/bundles.md").read_text()
TYPED, TYPED_WITH_NDK = (
    re.compile(rf"^## {title}\n.*?^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for title in ("Without an NDK", "With the NDK")
)
PHONES = {Abi.ARM64: "oneplus-12+arm64", Abi.X86_64: "galaxy-s9"}
LIMIT_S = 300.0
END_LIMIT_S = 60.0
pytestmark = pytest.mark.timeout(900)  # packages of 200 MB, and compilers of a loaded host


@pytest.fixture(scope="module")
def whole():
    """A farm with a phone of each machine, where packages can be had."""
    try:
        arm64_folder()
        for abi in PHONES:
            build_from_wheels(default_cache(), abi, Platform.ANDROID, installed_versions(), lambda _: None)
    except (Arm64ToolsError, DownloadError) as error:
        pytest.skip(f"{error.message} ({error.hint}) {error.evidence}")
    with running_farm(*PHONES.values(), config="[rollout]\nsoak_s = 0\n") as farm:
        yield farm


def build(farm, *words, **environ):
    environ = {**os.environ, "FARM_SOCKET": str(farm.socket), **environ}
    return run_farm("bundle", "build", *words, environ=environ, timeout_s=LIMIT_S)


def parts_beside(tmp_path):
    """A cache of its own with the packages of the real one, and nothing made of them."""
    (cache := tmp_path / "cache/farm/runtime").mkdir(parents=True)
    for part in (*default_cache().glob("apache-tvm-*"), *default_cache().glob("debian-*")):
        shutil.copytree(part, cache / part.name)
    return cache


def test_what_the_document_types_makes_a_bundle_for_real_phones(farm):
    lines = [line.removeprefix("$ ") for line in TYPED.search(DOCUMENT)[1].splitlines()]
    assert lines[0].startswith("farm bundle build ")
    done = [farm.farm(*line.split()[1:], timeout_s=LIMIT_S) for line in lines]
    assert [each.returncode for each in done] == [0] * len(lines), done
    assert "serve CPU work only" in done[0].stderr
    assert "golden kernels: cpu\n" in done[1].stdout
    assert re.search(r"^main .* arm64-v8a .* current$", done[2].stdout, re.MULTILINE)
    assert farm.farm("bundle", "verify", "main").returncode == 0
    again = build(farm, "main", "--json")
    assert not re.search("downloading|compiling", again.stderr), again
    assert answer(again)["hash"] == answer(farm.farm("bundle", "show", "main", "--json"))["hash"]


@needs(*CMAKE_MAKERS, "clang", "llvm-strip")
def test_what_the_document_types_with_an_ndk_makes_a_bundle_that_phones_take(farm, tmp_path):
    """The host's clang stands in for the NDK's, a small project for TVM's: phones of the host's machine run it."""
    clone, built, shown = (line.removeprefix("$ ") for line in TYPED_WITH_NDK.search(DOCUMENT)[1].splitlines())
    assert clone.startswith("git clone --recursive --branch v0.27.0 ")
    stand_in_ndk(tmp_path / re.search(r"--ndk ~/(\S+)", built)[1])
    small_checkout(tmp_path / re.search(r"--tvm-source ~/(\S+)", built)[1], installed_tvm())
    phone, story = phones(farm)[1], Story(farm)
    words = built.replace("~", str(tmp_path)).removeprefix("farm bundle build ").split()
    done = build(farm, *words, "--abi", "x86_64", "--json", XDG_CACHE_HOME=str(tmp_path / "cache"))
    made = answer(done)
    assert "preparing the build with CMake and Ninja" in done.stderr
    assert "libtvm_runtime_opencl.so" in farm.farm(*shown.split()[1:]).stdout
    story.until("bundle.current", hash=made["hash"])
    until_ready(farm)
    assert phone.row["bundle"] == made["hash"]
    assert farm.farm("bundle", "rollback", "gpu").returncode == 0
    until(lambda: phone.row["bundle"] != made["hash"])
    until_ready(farm)


def test_code_for_android_runs_on_the_c_library_of_the_bundle(farm, tmp_path):
    """Golden kernels of a real phone's bundle name libc.so and libm.so, as bionic calls them."""
    import tvm.rpc

    shown = answer(build(farm, "main", "--json"))
    place, port = farm.folder / "state/bundles/objects" / shown["hash"], free_port()
    server = ["./ld-linux-aarch64.so.1", "--library-path", ".", "./tvm_rpc", "server", "--host=127.0.0.1", "--key=key"]
    options = [f"--port={port}", f"--port-end={port + 1}", f"--work-dir={tmp_path}"]
    child = subprocess.Popen(
        [arm64_folder() / "qemu-aarch64", *server, *options],
        cwd=place / "files", start_new_session=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(port)
        checked = run_golden(tvm.rpc.connect("127.0.0.1", port, "key"), place / "golden")
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(END_LIMIT_S)
    assert checked.ok, checked


@pytest.mark.parametrize("abi", PHONES)
def test_a_phone_runs_benches_and_tunes_with_nothing_but_the_bundle(farm, abi, model, tmp_path):
    phone = phones(farm)[[*PHONES].index(abi)]
    story, name = Story(farm), phone.name
    made = answer(build(farm, f"own-{abi}", "--from-wheel", "--abi", abi, "--platform", "linux-glibc", "--json"))
    story.until("bundle.current", hash=made["hash"])
    until_ready(farm)
    assert phone.row["bundle"] == made["hash"]
    home = f"{ON_PHONE}/farm/bundles/{made['hash']}"
    mapped = phone.shell(f"cat /proc/{phone.server()}/maps")
    libraries = {line.split()[-1] for line in mapped.splitlines() if ".so" in line}
    assert f"{home}/libc.so.6" in libraries
    assert [path for path in libraries if not path.startswith(home)] == []
    assert farm.farm("run", str(model), "--on", name, timeout_s=LIMIT_S).returncode == 0
    bench = farm.farm("bench", str(model), "--on", name, "--repeat", "3", timeout_s=LIMIT_S)
    assert "Outputs match the reference" in bench.stdout, bench
    one_conv = tmp_path / "one_conv.onnx"
    subprocess.run([sys.executable, "-m", "farm.zoo", "one_conv", one_conv], check=True, env=environment())
    tuned = farm.farm("tune", str(one_conv), "--on", name, "--trials", "4", "--cost-model", "random", timeout_s=LIMIT_S)
    assert "4 of 4" in tuned.stdout, tuned
    assert phone.row["findings"] == []


def test_the_same_packages_give_the_same_files_in_another_place(farm, tmp_path):
    here = build_from_wheels(default_cache(), Abi.ARM64, Platform.ANDROID, installed_versions(), lambda _: None)
    cache = parts_beside(tmp_path)
    there = build_from_wheels(cache, Abi.ARM64, Platform.ANDROID, installed_versions(), lambda _: None)
    first, second = ({path.name: hash_file(path) for path in place.iterdir()} for place in (here, there))
    assert first == second


def test_what_cannot_be_is_one_line(farm):
    refused(build(farm, "old", "--abi", "armeabi-v7a"), 2, "TVM has no wheel for armeabi-v7a", "NDK")
    refused(
        build(farm, "virtual", "--abi", "arm64-v8a"), 2, "there is another bundle virtual", "farm bundle remove virtual"
    )
    refused(build(farm, "own", "--toolchain", "absent"), 2, "there is no toolchain 'absent'")
    refused(build(farm, "own", "--ndk", "/nowhere", "--from-wheel"), 2, "--from-wheel and --ndk do not go together")
    refused(build(farm, "own", "--ndk", "/nowhere", FARM_TVM_SOURCE=""), 2, "--ndk needs --tvm-source", "git clone")
    refused(build(farm, "own", "--ndk", "/nowhere", "--tvm-source", "/nowhere"), 2, "/nowhere is no Android NDK")


def test_without_a_network_it_says_so(farm, tmp_path):
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    done = build(farm, "own", XDG_CACHE_HOME=str(tmp_path), **nowhere)
    refused(done, 1, "apache-tvm 0.27.0.post1 for aarch64 could not be downloaded: the package index cannot be reached")


def test_an_interrupted_build_leaves_nothing_and_goes_on_with_what_is_there(farm, tmp_path):
    cache = parts_beside(tmp_path)
    shutil.rmtree(cache / "debian-arm64")
    before = sorted(path.name for path in cache.iterdir())
    command = [sys.executable, "-m", "farm", "bundle", "build", "interrupted"]
    environ = environment() | {"FARM_SOCKET": str(farm.socket), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        until_printed(child, "downloading Debian's")
        os.killpg(child.pid, signal.SIGINT)
        said = child.stderr.read()
    assert (child.returncode, "Traceback" in said) == (130, False), said
    assert sorted(path.name for path in cache.iterdir()) == [*before, "lock"]
    done = build(farm, "interrupted", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done
    assert "downloading apache-tvm" not in done.stderr
