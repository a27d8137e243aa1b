"""Stored results as `history.list` answers them, two rows a page."""

from datetime import UTC, datetime, timedelta

DAY = datetime(2026, 11, 1, tzinfo=UTC)


def row(number, median_s=0.010, *, width=0.001, first=DAY, **fields):
    """Result number of a day; `width` is its interval's, to either side."""
    estimate = {"median_s": median_s, "low_s": median_s * (1 - width), "high_s": median_s * (1 + width)}
    return {
        "seq": number, "job": f"bench-{number}", "model": "a" * 64, "name": "net", "device": "pixel",
        "epoch": "x/y:14", "at": (first + timedelta(days=number)).isoformat(), "estimate": estimate,
        "verdict": "trusted", "target": "cpu", "precision": "float32", "tuned": False, "tvm": "0.27", **fields,
    }  # fmt: skip


def measured(number, kind, **values):
    """What a job of another kind measured: its metrics' values, alone or with the ends of their intervals."""
    names = ("value", "low", "high")
    given = {name: each if isinstance(each, tuple) else (each, None, None) for name, each in values.items()}
    named = {name.replace("_", " "): dict(zip(names, each, strict=True)) for name, each in given.items()}
    return row(number) | {"job": f"{kind}-{number}", "estimate": None, "values": named}


def energy(number, joules=0.01, **fields):
    """The joules of an inference, known to 1 %."""
    return measured(number, "energy", energy=(joules, 0.99 * joules, 1.01 * joules)) | {"method": "by meter", **fields}


def memory(number, peak=274.3e6, **fields):
    """What a cold start takes."""
    return measured(number, "memory", peak_memory=peak, first_load=0.0123, first_run=0.0456) | fields


def history(*rows):
    """The answers of a daemon with these results."""

    def models(model, **_):
        named = [each for each in rows if each["name"] == model]
        return {"models": [{"model": each["model"], "name": each["name"], "count": 1} for each in named]}

    def page(model="", device="", before=1 << 60, **_):
        found = [
            each
            for each in sorted(rows, key=lambda each: -each["seq"])
            if model in ("", each["model"]) and device in ("", each["device"]) and each["seq"] < before
        ]
        return {"rows": found[:2], "more": len(found) > 2}

    return {"history.models": models, "history.list": page}
