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
    ("language", "abi", "which", "packaged", "command"),
    [
        ("c++", Abi.ARM64, named("g++", "aarch64-linux-gnu-g++", "zig"), None, ("/usr/bin/aarch64-linux-gnu-g++",)),
        ("c++", Abi.ARM64, named("g++", "zig"), None, ZIG),
        ("c++", Abi.ARM64, named("g++"), "/site/ziglang/zig", ("/site/ziglang/zig", *ZIG[1:])),
        ("c++", Abi.X86_64, named("g++", "zig"), None, ("/usr/bin/g++",)),
        ("c", Abi.X86_64, named("g++", "gcc"), None, ("/usr/bin/gcc",)),
        ("c", Abi.ARM64, named("gcc"), "/zig", ("/zig", "cc", *ZIG[2:])),
    ],
)
def test_the_first_that_is_there(language, abi, which, packaged, command):
    assert find_compiler(abi, which, lambda: packaged, language=language).command == command


def test_a_host_without_any_is_told_what_to_install():
    with raises_code(Code.NO_COMPILER) as caught:
        find_compiler(Abi.ARM64, named("g++"), lambda: None)
    assert caught.value.message == "this host has no compiler for arm64-v8a"
    assert caught.value.hint == "apt install g++-aarch64-linux-gnu, or `pip install ziglang` beside farm"
