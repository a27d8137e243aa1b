"""Devices, bundles and leases as the JSON that people's commands print. One shape per thing, in one place."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from farm.bundle.manifest import Bundle
from farm.core.alike import alike
from farm.core.device import DeviceView, Heat, Life, Service
from farm.core.phone_text import REASON, plain
from farm.core.requests import LeaseClass

_MOST_ENTRIES = 32  # of a list in a row


def state_word(view: DeviceView, *, held: bool) -> str:
    """One word for a device's three facts and its lease: what keeps it from the next user, else `ready`."""
    if view.life is not Life.READY:
        return view.life.value
    if held:
        return "busy" if view.service is Service.IN else f"busy, {view.service.value}"
    if view.service is not Service.IN:
        return view.service.value
    return view.heat.value if view.heat is not Heat.OK else Life.READY.value


def _ordered(view: DeviceView) -> str:
    """An order that keeps a ready device out, with what undoes it."""
    out = view.life is Life.READY and view.service is not Service.IN
    return f"an operator's order; undo: farm device release {view.name}" if out else ""


def _closed(view: DeviceView) -> str:
    """Why a ready device does not serve everybody: to the first of the classes, and what that says of the others."""
    if view.life is not Life.READY:
        return ""
    return next((str(view.closed[each]) for each in LeaseClass if each in view.closed), "")


def _found(view: DeviceView) -> str:
    """What probes find wrong with a ready device; what recovery should mend goes first."""
    return next((each.what for each in sorted(view.findings, key=lambda each: not each.act)), "")


def device_row(view: DeviceView, holder: str) -> dict[str, Any]:
    """A device in `farm status`. `holder` is empty when nobody has it."""
    identity = view.identity
    row = {
        "name": view.name,
        "serial": view.serial,
        "state": state_word(view, held=bool(holder)),
        "life": view.life.value,
        "service": view.service.value,
        "heat": view.heat.value,
        "closed": {
            each.value: {"reason": why.reason, "opens_in_s": why.opens_in_s} for each, why in view.closed.items()
        },
        "reason": view.reason or _ordered(view) or _closed(view) or _found(view),
        "findings": [
            {"kind": each.kind.value, "what": each.what, "hint": each.hint, "act": each.act} for each in view.findings
        ],
        "adopted": view.adopted,
        "pool": view.pool,
        "virtual": identity.virtual if identity else False,
        "model": identity.model if identity else "",
        "soc": (identity.soc.model or identity.soc.name) if identity else "",
        "gpu": identity.gpu.model if identity else "",
        "temperature_c": view.temperature_c,
        "temperature_of": view.temperature_of,
        "battery_percent": view.battery_percent,
        "usb": view.place.path if view.place else "",
        "holder": holder,
        "aliases": list(view.aliases),
        "bundle": view.bundle,
        "since": view.since.isoformat() if view.since else None,
    }
    return {name: _bounded(value) for name, value in row.items()}


def _bounded(value: Any) -> Any:
    """So much that no device's words make the answer about all of them too large to send."""
    if isinstance(value, str):
        return plain(value, REASON)
    if isinstance(value, list):
        return [_bounded(each) for each in value[:_MOST_ENTRIES]]
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    return value


def device_details(view: DeviceView, holder: str) -> dict[str, Any]:
    """Everything `farm device show` prints."""
    identity = view.identity
    facts = {} if identity is None else asdict(identity)
    like = alike(identity, view.bundle)
    return {
        **device_row(view, holder),
        "checked": view.checked,
        "labels": dict(view.labels),
        "alike": None if like is None else asdict(like),
        "targets": dict(facts.pop("targets", {})),
        "raw": facts.pop("raw", {}),
        "identity": facts,
    }


def bundle_row(bundle: Bundle) -> dict[str, Any]:
    """A bundle in `farm bundle list`."""
    return {
        "name": bundle.name,
        "hash": bundle.hash,
        "abi": bundle.abi,
        "toolchain": bundle.toolchain,
        "tvm_version": bundle.tvm_version,
        "has_opencl": bundle.has_opencl,
        "size_bytes": sum(file.size for file in bundle.files),
        "files": [{"name": f.name, "size_bytes": f.size, "sha256": f.sha256} for f in bundle.files],
        "golden": [golden.kind for golden in bundle.golden],
        "warnings": list(bundle.warnings),
    }
