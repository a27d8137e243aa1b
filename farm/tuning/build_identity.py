"""Whether two machines would build the same bytes of a candidate: an identity over everything that shapes them."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
from collections.abc import Mapping
from typing import Any

from farm import __version__
from farm.bundle.model import Abi, Platform
from farm.common.errors import HostError
from farm.compiler.link import Linker, find_linker

RECIPE = 2  # raise it when candidates are built differently: what is cached, and who has another one, is then not used
VERSION_LIMIT_S = 10.0


def identity_of(facts: Mapping[str, Any]) -> str:
    """The identity of facts as `build_facts` has them."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.cache
def build_facts(abi: Abi, platform: Platform) -> Mapping[str, Any]:
    """Recipe and versions that shape a candidate for that ABI and platform on this host. Imports TVM.

    Raises:
        HostError: the host has no linker for it.
    """
    import tvm
    import tvm_ffi

    linker = find_linker(abi, platform)
    return {
        "recipe": RECIPE,
        "tvm": str(tvm.__version__),
        "ffi": str(tvm_ffi.__version__),
        "linker": linker.name,
        "linker_version": _version(linker),
        "farm": __version__,
        "abi": str(abi),
        "platform": str(platform),
    }


def all_build_facts() -> dict[str, Mapping[str, Any]]:
    """The facts of everything that this host can build, by their identities."""
    found = {}
    for abi in Abi:
        for platform in Platform:
            try:
                facts = build_facts(abi, platform)
            except HostError:
                continue
            found[identity_of(facts)] = facts
    return found


def _version(linker: Linker) -> str:
    try:
        done = subprocess.run(
            [*linker.command, "--version"], capture_output=True, text=True, timeout=VERSION_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip()
