"""CMake: which one is taken, what its output tells, and what a failure says; how a build ends on Ctrl-C."""

import sys
from pathlib import Path

import pytest

from farm.common.errors import Code
from farm.runtime import ndk_build
from farm.runtime.ndk_build import CMake, build_target, cause_of, find_cmake, needed_version, progress_of
from tests.support.errors import raises_code

NINJA = """\
[0/2] Re-checking globbed directories...
[1/40] Building CXX object a.o
[2/40] Building CXX object b.o
ninja: a word in between
[6/40] Building CXX object c.o
[40/40] Linking CXX executable tvm_rpc
"""
MAKE = "[  5%] Building CXX object a.o\n[ 50%] Building CXX object b.o\n[100%] Built target tvm_rpc\n"


def program(folder, version):
    path = folder / "cmake"
    path.write_text(f"#!/bin/sh\necho cmake version {version}\n")
    path.chmod(0o755)
    return str(path)


def test_progress_is_told_in_steps():
    assert list(progress_of(NINJA.splitlines())) == [
        f"compiling TVM: {done} of 40 files" for done in (1, 6, 40)
    ]  # fmt: skip
    assert list(progress_of(MAKE.splitlines())) == [f"compiling TVM: {done} %" for done in (5, 50, 100)]


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("[3/9] Building\n/src/a.cc:7:1: error: no type 'x'\n1 error", "/src/a.cc:7:1: error: no type 'x'"),
        ("-- ok\nCMake Error at x:18 (project):\n\n  No compiler\n", "CMake Error at x:18 (project): No compiler"),
        ("ld.lld: error: undefined symbol: f", "ld.lld: error: undefined symbol: f"),
        ("ld: a.o: undefined reference to 'f'\nclang: error: linker failed", "ld: a.o: undefined reference to 'f'"),
        ("ninja: build stopped", ""),
    ],
)
def test_the_line_that_says_why(said, cause):
    assert cause_of(said) == cause


def test_the_version_that_checkouts_ask_for():
    texts = ["# TVM\ncmake_minimum_required(VERSION 3.18)\n", "cmake_minimum_required(VERSION 3.26...3.30)\n", ""]
    assert needed_version(texts) == (3, 26)
    assert needed_version([]) == (0,)


@pytest.mark.parametrize("maker", ["ninja", "make"])
def test_the_first_that_is_new_enough(tmp_path, maker):
    path = program(tmp_path, "3.26.4")
    found = find_cmake((3, 26), {"cmake": path, maker: f"/usr/bin/{maker}"}.get)
    assert (found.program, found.maker) == (path, f"/usr/bin/{maker}")


def test_a_new_one_beside_python_is_taken_before_an_old_one_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "venv").mkdir()
    beside = program(tmp_path / "venv", "4.1.0")
    monkeypatch.setattr(sys, "executable", str(Path(beside).with_name("python")))
    found = find_cmake((3, 26), {"cmake": program(tmp_path, "3.25.1"), "ninja": "/usr/bin/ninja"}.get)
    assert found.program == beside


@pytest.mark.parametrize(
    ("there", "message", "hint"),
    [
        ({}, "this host has no CMake, which builds TVM", "apt install cmake ninja-build"),
        ({"cmake": "3.25.1"}, "CMake 3.25.1 is too old: this TVM needs 3.26", "pip install 'cmake>=3.26' beside farm"),
        ({"cmake": "3.26.0"}, "this host has neither Ninja nor make, which CMake needs", "ninja-build"),
    ],
)
def test_what_is_missing_is_told(tmp_path, monkeypatch, there, message, hint):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/python"))
    programs = {name: program(tmp_path, version) for name, version in there.items()}
    with raises_code(Code.NO_BUILD_TOOL) as caught:
        find_cmake((3, 26), programs.get)
    assert caught.value.message == message
    assert hint in caught.value.hint


# A build that does `on_interrupt` when it is told to end.
BUILD = """\
#!@PYTHON@
import os, pathlib, signal, sys
def end(*_):
    @ON_INTERRUPT@
signal.signal(signal.SIGINT, end)
os.write(1, b"[1/2] Building a.o\\n")  # not by print, in which `end` could not print
while True:
    signal.pause()
"""


def interrupt(_step):
    raise KeyboardInterrupt


def interrupted_build(folder, on_interrupt):
    program = folder / "cmake"
    program.write_text(BUILD.replace("@PYTHON@", sys.executable).replace("@ON_INTERRUPT@", on_interrupt))
    program.chmod(0o755)
    with pytest.raises(KeyboardInterrupt):
        build_target(CMake(str(program), "Ninja", "ninja"), folder, "tvm_rpc", interrupt)


def test_a_build_that_prints_much_while_it_ends_does_end(tmp_path):
    interrupted_build(
        tmp_path, f"print('x' * 1_000_000); pathlib.Path({str(tmp_path / 'ended')!r}).touch(); sys.exit(1)"
    )
    assert (tmp_path / "ended").exists()


def test_a_build_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(ndk_build, "_END_LIMIT_S", 0.1)
    interrupted_build(tmp_path, "pass")
