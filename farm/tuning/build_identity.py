"""Whether two machines would build the same bytes of a candidate: an identity over everything that shapes them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import subprocess
from collections.abc import Mapping
from typing import Any

from farm import RELEASE
from farm.bundle.model import Abi, Platform
from farm.common.errors import HostError
from farm.compiler.link import Linker, find_linker

RECIPE = 2  # raise it when candidates are built differently: what is cached, and who has another one, is then not used
VERSION_LIMIT_S = 10.0


@functools.cache
def build_identity(abi: Abi, platform: Platform) -> tuple[str, Mapping[str, Any]]:
    """The identity of this host for candidates for that ABI and platform, and the facts that it is over. Imports TVM.

    Raises:
        HostError: the host has no linker for it.
    """
    import tvm
    import tvm_ffi

    linker = find_linker(abi, platform)
    facts = {
        "recipe": RECIPE,
        "tvm": str(tvm.__version__),
        "ffi": str(tvm_ffi.__version__),
        "linker": linker.name,
        "linker_version": _version(linker),
        "farm": RELEASE,
        "abi": str(abi),
        "platform": str(platform),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(), facts


def build_identities() -> dict[str, Mapping[str, Any]]:
    """Those of everything that this host can build, with their facts."""
    found = []
    for abi, platform in itertools.product(Abi, Platform):
        with contextlib.suppress(HostError):
            found.append(build_identity(abi, platform))
    return dict(found)


def _version(linker: Linker) -> str:
    try:
        done = subprocess.run(
            [*linker.command, "--version"], capture_output=True, text=True, timeout=VERSION_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip()
