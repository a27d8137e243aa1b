"""The folder in which CMake works for a build with an NDK."""

from dataclasses import replace
from pathlib import Path

from farm.runtime import ndk_build
from farm.runtime.ndk_build import CMake, build_name

NINJA = CMake("/usr/bin/cmake", "Ninja", "/usr/bin/ninja")
CACHE = Path("/cache")
OPTIONS = {"TVM_CHECKOUT": "/tvm", "ANDROID_ABI": "x86_64"}


def test_what_a_cmake_cache_keeps_has_a_folder_of_its_own(monkeypatch):
    names = {
        build_name(CACHE, "digest", NINJA, OPTIONS),
        build_name(CACHE, "other", NINJA, OPTIONS),
        build_name(Path("/moved"), "digest", NINJA, OPTIONS),
        build_name(CACHE, "digest", CMake("/usr/bin/cmake", "Unix Makefiles", "/usr/bin/make"), OPTIONS),
        build_name(CACHE, "digest", NINJA, OPTIONS | {"TVM_CHECKOUT": "/moved"}),
    }
    assert len(names) == 5
    newer = replace(NINJA, program="/opt/cmake")
    assert build_name(CACHE, "digest", newer, dict(reversed(OPTIONS.items()))) in names
    monkeypatch.setattr(ndk_build, "_PROJECT", Path("/venv/ndk_project"))
    assert build_name(CACHE, "digest", NINJA, OPTIONS) not in names
