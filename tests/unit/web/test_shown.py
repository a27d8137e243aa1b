"""What pages show, whole: one snapshot for each; pages.json has the answers that those of jobs are made of."""

import json
from pathlib import Path

import pytest

from farm.common.causes import brief
from farm.control.callers import Role
from farm.model.device import Life, Service
from farm.model.health import Finding, FindingKind
from farm.model.identity import DeviceIdentity, Soc
from tests.support.web_desk import Desk, Page, Readable, device_desk, job_desk, lab_desk, status
from tests.support.web_rows import AT, HOSTILE, SHA, job, lease, leases, running, told, view


def of_file(path, raw="{}", **case):
    return path, job_desk(
        told(job(**case.get("job", {})), **case.get("told", {})), raw.encode(), **case.get("answers", {})
    )


def measured(seq, verdict, **fields):
    """A row of `history.list`."""
    return {
        "seq": seq, "job": f"bench-{seq}", "model": SHA, "name": "m", "device": "pixel", "verdict": verdict, "at": AT,
        "estimate": {"median_s": seq * 1e-3, "low_s": seq * 0.9e-3, "high_s": seq * 1.1e-3}, "target": "cpu",
        "precision": "float32", "tvm": "0.1", "epoch": "14", "soc": "sm8650", "gpu": "", "reasons": [], **fields,
    }  # fmt: skip


def certificate(job):
    median_s, device = (4e-3 if job == "bench-4" else 2e-3), ("tab" if job == "bench-1" else "pixel")
    estimate = {
        "median_s": median_s, "low_s": median_s * 0.9995, "high_s": median_s * 1.0005, "confidence": 0.95,
        "count": 100, "effective_count": 100.0, "block": 1,
    }  # fmt: skip
    found = {"device": device, "epoch": "14", "verdict": "trusted", "reasons": [], "estimate": estimate}
    return {"result": {"certificate": found}}


def of_model(*rows):
    models = [{"model": SHA, "name": HOSTILE, "count": 4}]
    lists = {"history.models": {"models": models}, "history.list": {"rows": list(rows), "more": True}}
    return Desk(**lists, **{"job.show": certificate})


def newest(before=0, **asked):
    assert "model" not in asked
    rows = [measured(2, "suspect", device="fire")] if before else [measured(4, "trusted"), measured(3, "trusted")]
    return {"rows": rows, "more": not before}


RESULTS = (
    measured(4, "trusted"), measured(3, "rejected"), measured(2, "trusted", tvm="0.2"), measured(1, "trusted"),
)  # fmt: skip
TODAY = {"nominal_s": 1e-3, "median_s": 5e-4, "low_s": 5e-4, "high_s": 1e-3}
RESCALED = [measured(n, "trusted", name=HOSTILE, reference={"nominal_s": 2e-3}, today=TODAY) for n in (2, 1)]
ONE_SAMPLE = measured(3, "trusted", estimate={"median_s": 1e-3, "low_s": None, "high_s": None})
QUALITY = {"metric": "top1", "value": 0.95, "low": 0.93, "high": 0.97, "count": 500, "data": SHA}
RIGHT = measured(5, "trusted", job="run-5", estimate=None, quality=QUALITY)
LONG = "the golden check failed: conv2d on opencl differs by 0.3 at 17 of 4096 places, dense was right"
QUARANTINED = device_desk(
    view(life=Life.QUARANTINED, reason=LONG, checked=LONG), why=LONG,
    hint="look at it, then `farm device release pixel`",
    events=[{"seq": 1, "at": AT, "kind": "device.quarantined", "subject": "pixel", "data": {"reason": LONG}}],
    quarantine={"cause": brief(LONG), "hint": "", "at": None, "rule": "person", "evidence": []},
)  # fmt: skip
BUSY = device_desk(view(), holder="bob")
BUSY.answers |= leases(lease(job="tune-7", expires_at=None)) | {
    "job.list": {"jobs": [running(id="tune-7", kind="tune", progress={"done": 12, "of": 64, "eta_s": 90.0})]}
}


def session(kind, seq, user, **data):
    return {"seq": seq, "at": AT, "kind": f"session.{kind}", "subject": "lease-1", "data": {"user": user, **data}}


CUT = {"session": "s1", "outcome": "cut", "detail": "idle", "bytes_up": 2_000_000, "bytes_down": 10, "seconds": 61.5}
SESSIONS = [
    session("opened", 4, "eve", session="s2"), session("ended", 3, "bob", **CUT), session("opened", 2, "bob"),
]  # fmt: skip
NAMED = view("poco", identity=DeviceIdentity(model="24069PC21I", market_name="POCO F6", soc=Soc(model="SM8635")))
WALL = Desk(status=status(
    view("a-ready", temperature_c=36.04, battery_percent=80), view("b-gone", life=Life.GONE),
    view("c-new", adopted=False, life=Life.NEW), view("d-bad", life=Life.QUARANTINED),
    view("e-mends", life=Life.RECOVERING),
    view("f-full", findings=(Finding(FindingKind.DATA_LOW, "its storage is nearly full"),)),
    view("g-drained", service=Service.DRAINING), view("10.0.0.3:5555"), problems=["its disk is full: see farm doctor"],
))  # fmt: skip
IN_LAB = lab_desk(running(id="bench-1", on="far", started_at=None))
PAGES = {
    name: of_file(**case) for name, case in json.loads(Path(__file__).with_name("pages.json").read_text()).items()
} | {
    "history, its start": ("/history", Desk(**{"history.list": newest})),
    "history, its start with many results": ("/history", of_model(ONE_SAMPLE, *RESCALED)),
    "history, speed against quality": ("/history", of_model(RIGHT, measured(4, "trusted"))),
    "history of a model and how right it is": ("/history?model=m", of_model(RIGHT, measured(4, "trusted"))),
    "history of a model": ("/history?model=m", of_model(*RESULTS)),
    "history rescaled to today": ("/history?model=m", of_model(ONE_SAMPLE, *RESCALED)),
    "history, two results compared": ("/history?model=m&trusted=1&log=1&a=bench-4&b=bench-2", of_model(*RESULTS)),
    "history, results of unlike phones": ("/history?model=m&a=bench-4&b=bench-1", of_model(*RESULTS)),
    "history, a result that is gone": ("/history?model=m&a=bench-4&b=gone", of_model(*RESULTS)),
    "history, none is trusted": ("/history?model=m&trusted=1", of_model(RESULTS[1])),
    "a device in quarantine says so once": ("/devices/pixel", QUARANTINED),
    "a device that is busy": ("/devices/pixel", BUSY),
    "a device with sessions": ("/devices/pixel", device_desk(view(), events=SESSIONS, holder="eve")),
    "a device of a name on a box": ("/devices/poco", device_desk(NAMED)),
    "the wall, what needs a person first": ("/", WALL),
    "the wall while it drains": ("/", Desk(status=status(view(), draining=True))),
    "the wall as a table": ("/?view=table&group=state&sort=-name", WALL),
    "the wall, a name on a box": ("/?text=poco+f6", device_desk(NAMED)),
    "a lab's hosts": ("/hosts", IN_LAB),
    "a lab's jobs": ("/jobs", IN_LAB),
    "a lab's wall": ("/", IN_LAB),
    "a lost host's phone": ("/devices/away", IN_LAB),
}  # fmt: skip
ORDERS = ("bundles", "leases", "a device that is busy", "the wall while it drains")


@pytest.mark.parametrize("name", PAGES)
async def test_page(snapshot, name):
    path, desk = PAGES[name]
    snapshot(str(Readable(await Page(desk, lab=desk is IN_LAB).html(path))))


@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER, Role.OPERATOR], ids=lambda role: role.name.lower())
@pytest.mark.parametrize("name", ORDERS)
async def test_orders_offered(snapshot, name, role):
    path, desk = PAGES[name]
    farm = Page(desk)
    await farm.sign_in("bob", role)
    farm.session.notice = ""
    text = str(Readable(await farm.html(path)))
    snapshot("\n".join(line for line in text.splitlines() if "<" in line or "{" in line))
