"""The compiler for a phone's programs: the host's own, a cross compiler, else Zig."""

import platform

import pytest

from farm.bundle.model import Abi
from farm.common.errors import Code
from farm.runtime.server import find_compiler
from tests.support.errors import raises_code

ZIG = ("/usr/bin/zig", "c++", "-target", "aarch64-linux-gnu.2.28")


def named(*names):
    return lambda name: f"/usr/bin/{name}" if name in names else None


@pytest.fixture(autouse=True)
def host(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(
    ("abi", "which", "packaged", "command"),
    [
        (Abi.ARM64, named("g++", "aarch64-linux-gnu-g++", "zig"), None, ("/usr/bin/aarch64-linux-gnu-g++",)),
        (Abi.ARM64, named("g++", "zig"), None, ZIG),
        (Abi.ARM64, named("g++"), "/site/ziglang/zig", ("/site/ziglang/zig", *ZIG[1:])),
        (Abi.X86_64, named("g++", "zig"), None, ("/usr/bin/g++",)),
    ],
)
def test_the_first_that_is_there(abi, which, packaged, command):
    assert find_compiler(abi, which, lambda: packaged).command == command


def test_c_has_a_compiler_of_its_own():
    assert find_compiler(Abi.X86_64, named("g++", "gcc"), lambda: None, language="c").command == ("/usr/bin/gcc",)
    assert find_compiler(Abi.ARM64, named("gcc"), lambda: "/zig", language="c").command == ("/zig", "cc", *ZIG[2:])


def test_a_host_without_any_is_told_what_to_install():
    with raises_code(Code.NO_COMPILER) as caught:
        find_compiler(Abi.ARM64, named("g++"), lambda: None)
    assert caught.value.message == "this host has no compiler for arm64-v8a"
    assert caught.value.hint == "apt install g++-aarch64-linux-gnu, or `pip install ziglang` beside farm"
