"""Rows as the verbs answer them: phones, hosts, leases, jobs, and a bench's result."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from farm.model.device import DeviceView, Life

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
AT = "2026-11-22T06:00:00+00:00"
SHA = "ab" * 32
HOSTILE = "<img src=x onerror=alert(1)>\"'&"
BENCH = {  # a result
    "samples_s": [1e-3, 2e-3, 1.5e-3],
    "latency": {"count": 3, "median_ms": 1.5, "min_ms": 1.0, "max_ms": 2.0, "low_ms": 1.0, "high_ms": 2.0},
    "estimate": {"median_ms": 1.5, "low_ms": 1.0, "high_ms": 2.0, "confidence": 0.95},
    "verdict": "suspect", "max_abs_error": 1e-8, "target": "cpu",
    "certificate": {
        "raw": SHA, "count": 3, "reasons": [{"code": "wide", "verdict": "suspect", "cause": "it is <wide>"}],
        "tries": [{"reported": True, "started_at": AT, "seconds": 3.0}], "device": "pixel",
        "conditions": {"before": {"temperature_c": 30.0}, "during": [], "after": {"temperature_c": 31.5}},
    },
}  # fmt: skip


def view(name: str = "pixel", **facts: Any) -> DeviceView:
    """A device."""
    return DeviceView(**{"name": name, "serial": f"serial-{name}", "life": Life.READY, "adopted": True, **facts})


def host(name: str, state: str = "ok", **facts: Any) -> dict[str, Any]:
    """A row of `host.list`."""
    return {
        "name": name, "state": state, "address": f"{name}:9194", "beat_at": None, "silent_s": 1.0, "phones": 1,
        "version": "0.1.0", "protocol": 3, "drained": "", "reach": "", "hint": "", **facts,
    }  # fmt: skip


def lease(**facts: Any) -> dict[str, Any]:
    """A row of `lease.list`."""
    return {
        "id": "lease-1-1", "device": "pixel", "user": "bob", "source": "job", "lease_class": "interactive", "key": "",
        "job": "lease-7", "personal": True, "note": "", "held_s": 5.0, "expires_at": NOW.isoformat(), "session": "",
        "peer": "", **facts,
    }  # fmt: skip


def leases(*held: dict[str, Any], waiting: Any = (), more: int = 0) -> dict[str, Any]:
    """What `lease.list` answers, by its name."""
    return {
        "lease.list": {"now": NOW.isoformat(), "leases": list(held), "waiting": list(waiting), "waiting_more": more}
    }


def job(**fields: Any) -> dict[str, Any]:
    """A row of `job.list`."""
    return {
        "id": "bench-1", "kind": "bench", "name": "m.onnx", "user": "ann", "state": "done", "selector": "android",
        "device": "", "on": "pixel", "array": "", "priority": 1, "submitted_at": AT, "started_at": AT, "ended_at": AT,
        "attempts": 1, "error": None, "waits": "", "progress": None, **fields,
    }  # fmt: skip


def running(**fields: Any) -> dict[str, Any]:
    """A row of a job that has not ended."""
    return job(**{"state": "running", "ended_at": None, **fields})


def told(row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """What `job.show` answers."""
    spec = {"kind": row["kind"], "on": "android", "name": row["name"], "model": SHA}
    return {
        "job": row,
        "spec": spec,
        "after": [],
        "attempts": [],
        "result": None,
        "progress": None,
        "now": NOW.isoformat(),
        **fields,
    }
