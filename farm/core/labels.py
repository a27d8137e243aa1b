"""Labels and aliases: what a device is called by people, selectors and stock TVM clients (DESIGN D4)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from farm.core.alike import alike

if TYPE_CHECKING:
    from farm.core.identity import DeviceIdentity

T = TypeVar("T")

ANY_PHONE = "android"  # the alias of every adopted Android phone; also the key in TVM's own tutorials
MAX_VALUE_LENGTH = 96  # characters; a longer property value is no name any more and would break tables

# What `labels_of` sets: not for people to set by hand, a phone whose soc is a wish would get the wrong work.
DERIVED_LABELS = frozenset(
    {"name", "pool", "serial", "vendor", "model", "soc", "soc-name", "soc-vendor", "gpu", "gpu-family", "abi"}
    | {"android", "sdk", "virtual", "alike"}
)

_FORBIDDEN_RUN = re.compile(r"[^a-z0-9._-]+")


def normalise(value: str) -> str:
    """Return `value` as a label value: lower case, each run outside `[a-z0-9._-]` replaced by one `-`.

    The result never holds `:`, whitespace or quotes, so it is always a legal stock TVM key: one row with such a key
    breaks every stock RPCRunner. It is empty when nothing of the value survives. Dashes at either end go, because a
    value that starts with one reads like a command line option. Idempotent.
    """
    return _FORBIDDEN_RUN.sub("-", value.strip().lower()).strip("-")[:MAX_VALUE_LENGTH].rstrip("-")


def unique(value: str, taken: Collection[str]) -> str:
    """Return `value`, or `value-2`, `value-3` ... when it is already in `taken`."""
    candidate, number = value, 1
    while candidate in taken:
        number += 1
        candidate = f"{value}-{number}"
    return candidate


def of_model(tables: Mapping[str, T], model: str) -> T | None:
    """The table for a phone's model (`ro.product.model`), however either is spelt."""
    return {normalise(name): each for name, each in tables.items()}.get(normalise(model)) if model else None


def labels_of(
    identity: DeviceIdentity | None, name: str, pool: str = "", serial: str = "", bundle: str = ""
) -> dict[str, str]:
    """Return the labels of a device: normalised values, facts that are not known left out.

    Keys: those of DERIVED_LABELS; `android` is its release, `virtual` is `yes` or absent,
    `alike` the same on phones that farm.core.alike calls identical (`bundle`: the hash of the one on the phone).
    """
    values = {"name": name, "pool": pool, "serial": serial}
    if identity is not None:
        values |= {
            "vendor": identity.vendor,
            "model": identity.model,
            "soc": identity.soc.model,
            "soc-name": identity.soc.name,
            "soc-vendor": identity.soc.vendor,
            "gpu": identity.gpu.model,
            "gpu-family": identity.gpu.family,
            "abi": identity.abi,
            "android": identity.android_release,
            "sdk": str(identity.sdk) if identity.sdk else "",
            "virtual": "yes" if identity.virtual else "",
        }
    if (like := alike(identity, bundle)) is not None:
        values["alike"] = like.mark
    normalised = {label: normalise(value) for label, value in values.items()}
    return {label: value for label, value in normalised.items() if value}


def aliases_of(
    identity: DeviceIdentity | None, name: str, labels: Mapping[str, str], configured: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the stock TVM keys a device answers to: `android`, its GPU, its SoC, its name, then the configured ones.

    A device that is not identified answers to its name and the configured aliases only, one that is not adopted to
    none (farm.fleet.registry).
    """
    generic = (ANY_PHONE, labels.get("gpu", ""), labels.get("soc", "")) if identity is not None else ()
    wanted = (normalise(alias) for alias in (*generic, name, *configured))
    return tuple(dict.fromkeys(alias for alias in wanted if alias))
