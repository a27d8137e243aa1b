"""How phones are named, labelled and adopted, and the facts that pooled phones must share. Pure.

A phone that appears is only listed until a person adopts it or an `[[adopt]]` rule matches.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from farm.common.errors import Code, UserError
from farm.common.selector import Selector, checked_value, nearest, normalise, unique, unusable
from farm.model.identity import DeviceIdentity

_DEFAULTS = frozenset({"0123456789abcdef", "1234567890abcdef", "123456789", "1234567890", "unknown", "emulator", "n/a"})
ANY_PHONE = "android"  # the alias of every adopted Android phone; also the key in TVM's own tutorials


# What `labels_of` sets: not for people to set by hand, a phone with an invented soc would get the wrong work.
DERIVED_LABELS = frozenset(
    {"name", "pool", "serial", "vendor", "model", "soc", "soc-name", "soc-vendor", "gpu", "gpu-family", "abi"}
    | {"android", "sdk", "virtual", "alike", "host"}
)


def is_distinct(hardware_serial: str) -> bool:
    """Whether a serial number may be one phone's own: no maker's default, not all one character."""
    plain = hardware_serial.strip().lower()
    return len(set(plain)) > 1 and plain not in _DEFAULTS


def same_kind(one: DeviceIdentity | None, other: DeviceIdentity | None) -> bool:
    """Whether both are known to be of one vendor, model and ABI (an update changes the fingerprint, not these)."""
    if one is None or other is None:
        return False
    return (one.vendor, one.model, one.abi) == (other.vendor, other.model, other.abi)


def same_phone(one: DeviceIdentity | None, other: DeviceIdentity | None) -> bool:
    """Whether both are one phone, as far as phones say: its serial number is its own, and it is of the same kind."""
    if one is None or other is None or one.hardware_serial != other.hardware_serial:
        return False
    return is_distinct(one.hardware_serial) and same_kind(one, other)


def labels_of(
    identity: DeviceIdentity | None, name: str, pool: str = "", serial: str = "", bundle: str = "", host: str = ""
) -> dict[str, str]:
    """Return the labels of a device: normalised values, facts that are not known left out.

    Keys: those of DERIVED_LABELS; `android` is its release, `virtual` is `yes` or absent, `host` is for labs only,
    `alike` the same on phones that `alike` calls identical (`bundle`: the hash of the one on the phone).
    """
    values = {"name": name, "pool": pool, "serial": serial, "host": host}
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
    none (farm.devices.registry).
    """
    generic = (ANY_PHONE, labels.get("gpu", ""), labels.get("soc", "")) if identity is not None else ()
    wanted = (normalise(alias) for alias in (*generic, name, *configured))
    return tuple(dict.fromkeys(alias for alias in wanted if alias))


MARK_CHARS = 12  # 48 bits: no two kinds of phones of one farm share a mark by chance


@dataclass(frozen=True, slots=True)
class PoolingTraits:
    """The facts that phones must share to be pooled."""

    soc: str
    gpu: str
    abi: str
    targets: str  # canonical JSON
    bundle: str  # hash
    clock_policy: str = ""  # governors; "" when none is readable

    @property
    def mark(self) -> str:
        """The same for equal phones only: the value of the label `alike`."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:MARK_CHARS]


def alike(identity: DeviceIdentity | None, bundle: str) -> PoolingTraits | None:
    """The traits behind a phone's label `alike`; None while they are not known. `bundle`: the hash of the one on it."""
    if identity is None or not bundle:
        return None
    targets = json.dumps(identity.targets, sort_keys=True, default=str)
    soc, gpu = identity.soc, identity.gpu
    gpu_name = f"{gpu.model} {gpu.cores or ''}".strip()
    return PoolingTraits(soc.model or soc.name, gpu_name, identity.abi, targets, bundle, identity.clock_policy)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the fields in which two phones' `PoolingTraits`, as dicts, are not the same."""
    return tuple(name for name in one if one[name] != other.get(name))


DEFAULT_NAME = "{model}"
NAME_FIELDS = ("model", "market", "vendor", "soc", "gpu", "serial")


@dataclass(frozen=True, slots=True)
class AdoptRule:
    """`[[adopt]]`: phones that match `match` are adopted when they appear. `name` may use {model}, {soc}, {serial}."""

    match: str  # a selector; the first rule that matches decides
    pool: str = ""  # the pool that they come into
    name: str = ""  # may use {model} {soc} {serial}; empty: the model's

    @property
    def selector(self) -> Selector:
        """The phones that it adopts."""
        return Selector.parse(self.match)

    def check(self) -> None:
        """Check the rule as configured.

        Raises:
            UserError: `match` does not follow the selector grammar, the pool cannot be one, or the name template has no
                valid form, a field that does not exist or a character that no name has.
        """
        Selector.parse(self.match)
        if self.pool:
            checked_value(self.pool, "a pool")
        try:
            parts = list(string.Formatter().parse(self.name))
        except ValueError as error:
            raise UserError(
                f"adopt rule {self.match!r}: the name {self.name!r} is not a template: {error}", Code.BAD_CONFIG
            ) from error
        for written, wanted, spec, conversion in parts:
            if wrong := unusable(written):
                raise UserError(
                    f"adopt rule {self.match!r}: no name has {wrong!r}, as in {self.name!r}", Code.BAD_CONFIG,
                    hint="use letters, digits and . _ - beside the fields",
                )  # fmt: skip
            if wanted is not None and (wanted not in NAME_FIELDS or spec or conversion):
                close = nearest(wanted, NAME_FIELDS)
                hint = (
                    f"nearest is {{{close[0]}}}" if close else f"use {', '.join(f'{{{name}}}' for name in NAME_FIELDS)}"
                )
                raise UserError(
                    f"adopt rule {self.match!r}: the name has no field {{{wanted}}}", Code.BAD_CONFIG, hint=hint
                )


def adopting_rule(
    rules: Iterable[AdoptRule], identity: DeviceIdentity, serial: str, host: str = ""
) -> AdoptRule | None:
    """The first rule, in the order they are configured, that adopts this phone; None: leave it alone."""
    labels = labels_of(identity, "", serial=serial, host=host)
    aliases = aliases_of(identity, "", labels)
    return next((rule for rule in rules if rule.selector.matches(labels, aliases)), None)


def device_name(
    identity: DeviceIdentity | None, serial: str, taken: Collection[str], template: str = "", host: str = ""
) -> str:
    """A name that is a legal TVM key and that nothing else in the farm answers to.

    Hosts of a lab name their phones without asking each other: in a lab, the `host` follows.

    `{model}` is what is printed on the box when the phone knows it, else the vendor's model number. When nothing of the
    template survives (a market name without Latin letters), vendor and model number are used, then the serial.
    """
    fields = _name_fields(identity, serial)
    own_aliases = {ANY_PHONE, normalise(fields["soc"]), normalise(fields["gpu"])}
    for candidate in (template or DEFAULT_NAME, "{vendor}-{number}", "{serial}"):
        if name := normalise(candidate.format_map(fields)):
            return unique(_at_host(name, host), {*taken, *own_aliases})
    return unique(_at_host("phone", host), taken)


def _at_host(name: str, host: str) -> str:
    return normalise(f"{name}-{host}")


def _name_fields(identity: DeviceIdentity | None, serial: str) -> Mapping[str, str]:
    if identity is None:
        return dict.fromkeys((*NAME_FIELDS, "number"), "") | {"serial": serial}
    market = identity.market_name if _is_latin(identity.market_name) else ""
    return {
        "model": market or identity.model,
        "market": market,
        "number": identity.model,
        "vendor": identity.vendor,
        "soc": identity.soc.model,
        "gpu": identity.gpu.model,
        "serial": serial,
    }


def _is_latin(text: str) -> bool:
    """Whether normalising keeps every word: of "真我GT NEO 3" it would keep a half that names another phone."""
    return all(not character.isalpha() or normalise(character) for character in text)
