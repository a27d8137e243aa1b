"""`farm status`: what query_rpc_tracker prints, then the phones."""

from __future__ import annotations

from typing import Any

from farm.cli.context import JsonFlag, connect, print_json, print_table, tell
from farm.control.address import Remote

REASON_CHARS = 120


def status(json: JsonFlag = False) -> None:
    """The tracker's queue and every phone: state, reason, SoC, GPU, temperature, holder.

    TEMP is the hottest that the phone's thermal service reads (mostly a core; without one: any zone). Its sensor, and
    what gates look at: `farm explain device NAME`.
    """
    with connect() as client:
        answer = client.call("status")
    if json:
        print_json(answer)
        return
    print_status(answer, lab=client.where.host if isinstance(client.where, Remote) else "")


def print_status(answer: dict[str, Any], lab: str = "") -> None:
    """The status answer as two tables; `lab`: the host of a daemon elsewhere."""
    tracker = answer["tracker"]
    tell(f"Tracker address {tracker['host']}:{tracker['port']}")
    if answer.get("web"):
        tell(f"Web page {answer['web']}")
    if lab:
        tell(there(answer, lab))
    tell()
    if answer["keys"]:
        print_table(
            ("KEY", "TOTAL", "FREE", "PENDING"),
            ((row["key"], row["total"], row["free"], row["pending"]) for row in answer["keys"]),
        )
    else:
        tell("no keys: no phone is in service and nobody waits")
    tell()
    if answer["devices"]:
        print_devices(answer["devices"])
    else:
        tell("no phones: plug one in, or `farm device add HOST:PORT`; `farm doctor` checks this host")
    for problem in answer["problems"]:
        tell()
        tell(f"warning: {problem}")


def there(answer: dict[str, Any], lab: str) -> str:
    """What the addresses of a daemon elsewhere are on this host."""
    ports = [answer["tracker"]["port"]]
    if answer.get("web"):
        ports.append(int(answer["web"].rstrip("/").rpartition(":")[2]))
    ways = " ".join(f"-L {port}:127.0.0.1:{port}" for port in ports)
    host = "LAB" if lab in ("localhost", "[::1]") or lab.startswith("127.") else lab  # a tunnel's end is not its host
    return f"  as on the lab's own host; from here: ssh {ways} {host}"


def print_devices(devices: list[dict[str, Any]]) -> None:
    """One row per phone; the reason stands beside the state it explains."""
    print_table(
        ("DEVICE", "STATE", "SOC", "GPU", "TEMP", "BATTERY", "HOLDER", "REASON"),
        (
            (
                device["name"],
                device["state"],
                (device["soc"] or "-") + (" (virtual)" if device["virtual"] else ""),
                device["gpu"] or "-",
                *_figures(device),
                device["holder"] or "-",
                brief(device["reason"]),
            )
            for device in devices
        ),
    )


def brief(reason: str) -> str:
    """The beginning of a reason that would push everything else out of sight; `farm explain device` has all of it."""
    return reason if len(reason) <= REASON_CHARS else f"{reason[: REASON_CHARS - 3].rstrip()}..."


def print_devices_long(devices: list[dict[str, Any]]) -> None:
    """Where each phone is plugged in, how it is, what runs on it, what probes find wrong."""
    print_table(
        ("DEVICE", "SERIAL", "STATE", "PLACE", "TEMP", "BATTERY", "BUNDLE", "HOLDER", "FINDINGS"),
        (
            (
                device["name"],
                device["serial"],
                device["state"],
                device["usb"] or "-",
                *_figures(device),
                device["bundle"][:12] or "-",
                device["holder"] or "-",
                "; ".join(each["what"] for each in device["findings"]) or "-",
            )
            for device in devices
        ),
    )


def _figures(device: dict[str, Any]) -> tuple[str, str]:
    """Temperature and battery."""
    celsius, percent = device["temperature_c"], device["battery_percent"]
    return "-" if celsius is None else f"{celsius:.1f}C", "-" if percent is None else f"{percent}%"
