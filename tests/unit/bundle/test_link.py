from importlib.machinery import ModuleSpec

import pytest

from farm.bundle.model import Abi, Platform
from farm.common.errors import Code
from farm.compiler.link import Linker, find_linker, link_shared, linkers
from tests.support.errors import raises_code


def host(*programs):
    return lambda name: f"/nowhere/{name}" if name in programs else None


@pytest.fixture(autouse=True)
def _no_ziglang(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


PHONE, NATIVE = (Abi.ARM64, Platform.ANDROID, "x86_64"), (Abi.X86_64, Platform.LINUX, "x86_64")


def names_of(target, *programs, environ=None, which=None):
    abi, platform, machine = target
    ways = linkers(abi, platform, environ=environ or {}, which=which or host(*programs), machine=machine)
    return [way.name for way in ways]


@pytest.mark.parametrize(
    ("target", "programs", "expected"),
    [
        (NATIVE, "g++ ld.lld clang", "g++"),  # the compiler first
        (NATIVE, "clang ld.lld", "clang"),
        (NATIVE, "ld.lld ld", "ld.lld"),
        (NATIVE, "ld.lld-19 ld.lld-14", "ld.lld-19"),
        (NATIVE, "zig ld", "zig"),
        (NATIVE, "ld", "ld"),
        (NATIVE, "ld.gold", "ld.gold"),
        (PHONE, "g++ gcc ld clang ld.lld zig", "ld.lld"),  # never what the host's own compiler made
        (PHONE, "g++ clang ld.lld-16 zig", "ld.lld-16"),
        (PHONE, "g++ clang zig", "zig"),
        (PHONE, "aarch64-linux-gnu-ld ld", "aarch64-linux-gnu-ld"),
        ((Abi.X86_64, Platform.LINUX, "aarch64"), "g++ ld.lld", "ld.lld"),
        ((Abi.ARM64, Platform.LINUX, "aarch64"), "g++ ld.lld", "g++"),
    ],
)
def test_which_linker_is_taken(target, programs, expected):
    assert names_of(target, *programs.split())[0] == expected


def test_all_ways_are_listed_for_doctor():
    assert names_of(NATIVE, "g++", "clang", "ld.lld", "ld") == ["g++", "clang", "ld.lld", "clang with lld", "ld"]


def program(path, text):
    """A linker that notes what it is told and makes what it is asked for, or does as `text` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


NOTES = 'echo "$@" >> {}/told\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n'
CLANG = "toolchains/llvm/prebuilt/linux-x86_64/bin/clang"


def test_the_ndk_wins_for_phones_only(tmp_path):
    clang = program(tmp_path / CLANG, "")
    environ, which = {"ANDROID_NDK_HOME": str(tmp_path)}, host("ld.lld", "g++")
    best = linkers(Abi.ARM64, Platform.ANDROID, environ=environ, which=which)[0]
    assert best.name == "NDK clang (ANDROID_NDK_HOME)"
    assert best.command[:2] == (str(clang), "--target=aarch64-linux-android28")
    assert names_of(NATIVE, environ=environ, which=which)[0] == "g++"
    assert names_of(PHONE, environ={"ANDROID_NDK_HOME": "/gone"}, which=which)[0] == "ld.lld"


@pytest.mark.parametrize(("abi", "platform"), [(Abi.ARM64, Platform.ANDROID), (Abi.X86_64, Platform.LINUX)])
def test_the_packaged_zig_is_the_last_resort(abi, platform, tmp_path, monkeypatch):
    zig = program(tmp_path / "zig", "")
    spec = ModuleSpec("ziglang", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr("importlib.util.find_spec", {"ziglang": spec}.get)
    ways = linkers(abi, platform, environ={}, which=host("ld", "aarch64-linux-gnu-ld"), machine="x86_64")
    assert ways[:-1]
    assert ways[-1].name == "ziglang (PyPI)"
    assert ways[-1].command[:2] == (str(zig), "ld.lld")
    zig.chmod(0o644)
    assert "ziglang (PyPI)" not in [way.name for way in linkers(abi, platform, environ={}, which=host())]


@pytest.mark.parametrize("abi", list(Abi))
@pytest.mark.parametrize("platform", list(Platform))
def test_no_linker_says_what_to_install(abi, platform, monkeypatch):
    assert linkers(abi, platform, environ={}, which=host()) == ()
    monkeypatch.setattr("farm.compiler.link.linkers", lambda *_: ())
    with raises_code(Code.NO_LINKER, match=f"no linker for {abi}") as caught:
        find_linker(abi, platform)
    assert "apt install lld" in caught.value.hint


def test_a_refusing_linker_is_quoted(tmp_path):
    (tmp_path / "x.o").write_text("no object")
    refusing = Linker("sh", ("/bin/sh", "-c", "echo bad reloc >&2; echo more >&2; exit 3"), is_driver=False)
    with raises_code(Code.LINK_FAILED, match=r"sh cannot link out\.so: bad reloc$") as caught:
        link_shared(refusing, tmp_path / "out.so", [tmp_path / "x.o"])
    assert "more" in caught.value.evidence
    with raises_code(Code.LINK_FAILED, match="does not run"):
        link_shared(Linker("gone", ("/gone/ld",), is_driver=False), tmp_path / "out.so", [tmp_path / "x.o"])
    with raises_code(Code.LINK_FAILED, match="nothing to link"):
        link_shared(refusing, tmp_path / "out.so", [])


def test_the_ndk_gets_its_own_libm_and_a_stand_in_for_tvms_library(tmp_path):
    program(tmp_path / "ndk" / CLANG, NOTES.format(tmp_path))
    linker = linkers(Abi.ARM64, Platform.ANDROID, environ={"ANDROID_NDK_HOME": str(tmp_path / "ndk")}, which=host())[0]
    link_shared(linker, tmp_path / "out.so", [tmp_path / "code.o"], needed=["libtvm_ffi.so"])
    stub, final = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
    assert "-Wl,-soname,libtvm_ffi.so" in stub
    assert "-nostdlib" in stub
    assert "-nostdlib" not in final
    order = [final.index(str(tmp_path / "code.o")), final.index("-Wl,--no-as-needed"), final.index("-lm")]
    assert order == sorted(order)
    assert final[final.index("-Wl,--no-as-needed") + 1].endswith("/libtvm_ffi.so")
    assert "-Wl,-z,max-page-size=16384" in final
    assert (tmp_path / "out.so").exists()


def test_stand_ins_that_are_kept_are_made_once(tmp_path):
    ld = program(tmp_path / "ld", NOTES.format(tmp_path))
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in ("one.so", "two.so"):
        linker = Linker("ld", (str(ld),), is_driver=False)
        link_shared(linker, tmp_path / name, [tmp_path / "code.o"], needed=["libm.so", "libc.so"], stubs=stubs)
    told = (tmp_path / "told").read_text().splitlines()
    assert [line.count("-soname") for line in told] == [1, 1, 0, 0]
    assert all(str(stubs / "libc.so") in line for line in told[2:])
    assert sorted(path.name for path in stubs.iterdir()) == ["libc.so", "libm.so"]


@pytest.mark.parametrize(
    ("abi", "platform", "page_bytes"),
    [
        (Abi.X86_64, Platform.LINUX, 4096),
        (Abi.X86_64, Platform.ANDROID, 16384),
        (Abi.ARM64, Platform.LINUX, 16384),
        (Abi.ARM64, Platform.ANDROID, 16384),
    ],
)
def test_a_library_is_aligned_to_the_targets_largest_pages_and_has_no_debug_information(
    abi, platform, page_bytes, tmp_path
):
    lld = program(tmp_path / "ld.lld", NOTES.format(tmp_path))
    (way,) = linkers(abi, platform, environ={}, which={"ld.lld": str(lld)}.get, machine="riscv64")
    link_shared(way, tmp_path / "out.so", [tmp_path / "x.o"])
    said = (tmp_path / "told").read_text().split()
    assert f"max-page-size={page_bytes}" in said
    assert "--strip-debug" in said
