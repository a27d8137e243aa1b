"""The job door with a daemon's answers made up: the real wire, jobs that go as the test says, restarts at will."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from unittest import mock

from farm.common.errors import Code, FarmError, HostError, NoPhoneError, UserError, error_to_wire
from farm.common.verbs import Verb
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Role
from farm.control.server import ControlServer
from farm.model.requests import NoSuchLeaseError
from tests.support.waiting import HANG_S

PATIENCE_S = 60.0  # of its clients: on a loaded host its thread may have no processor for a while
FARM = (  # the command of a client
    sys.executable, "-c",
    f"import farm.control.client as c; c.SILENT_AFTER_S = {PATIENCE_S}; from farm.__main__ import main; main()",
)  # fmt: skip
FINAL = ("done", "failed", "cancelled")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)

Json = dict[str, Any]


class FakeDaemon:
    """Its state outlives its `kill`; all of it is touched in its own thread only."""

    def __init__(self, folder: Path, devices: tuple[str, ...] = ("pixel", "galaxy")) -> None:
        self.socket = folder / "control.sock"
        self.devices = devices
        self.refused: set[str] = set()  # selectors that job.check refuses
        self.holder = ""  # of each device
        self.submissions: list[Json] = []  # fields of every job.submit
        self.listings: list[Json] = []  # fields of every job.list
        self.calls: list[str] = []
        self.jobs: dict[str, Json] = {}  # id -> {"job": row, "spec", "attempts", "result"}
        self.keys: dict[str, Json] = {}
        self.events: list[Json] = []
        self.lines: list[Json] = []
        self.held: dict[str, Json] = {}  # id of a job -> what lease.show answers
        self.takeover = 0  # how many of the next submissions no head answers
        self.operator = ""  # what an operator must do before waiting jobs get a phone
        self.epoch = 0
        self._artifacts = folder / "artifacts"
        self._changed = asyncio.Condition()
        self._loop = asyncio.new_event_loop()
        self._server: ControlServer | None = None
        self._patience = mock.patch("farm.control.client.SILENT_AFTER_S", PATIENCE_S)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def __enter__(self) -> Self:
        self._patience.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patience.stop()
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    # -- what the test does --------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something in the daemon's own thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_S)

    def start(self) -> None:
        """Serve, as a new daemon on what the last one left."""

        async def start() -> None:
            self.epoch += 1
            server = self._server = ControlServer(self.socket, artifacts=ArtifactFolder(self._artifacts))
            for name in dir(self):
                if name.startswith("on_"):
                    kind = name.removeprefix("on_").replace("__", ".")
                    server.register(Verb(kind, Role.VIEWER, frame=True), getattr(self, name))
            await server.start()

        self.run(start())

    def stop(self) -> None:
        """End as `systemctl stop` does."""

        async def stop() -> None:
            if self._server is not None:
                await self._server.stop()
                self._server = None

        self.run(stop())

    def kill(self) -> None:
        """Vanish in the middle of everything, without a word."""

        async def kill() -> None:
            assert self._server is not None
            self._server._router._close()
            self.socket.unlink(missing_ok=True)
            await self._server.stop()
            self._server = None

        self.run(kill())

    def tell(self, kind: str, subject: str, **data: Any) -> int:
        """Something happens; returns its number."""
        return self.run(self._tell(kind, subject, data))

    def begin(self, job: str, device: str) -> None:
        """An attempt of a job starts."""

        async def begin() -> None:
            shown = self.jobs[job]
            number = len(shown["attempts"]) + 1
            shown["attempts"].append(
                {
                    "id": f"{job}.{number}", "number": number, "device": device, "fence": number, "lease": "L1",
                    "state": "running", "started_at": NOW.isoformat(), "ended_at": None, "error": None,
                }
            )  # fmt: skip
            shown["job"] |= {"state": "running", "on": device, "attempts": number}
            await self._tell("attempt.started", f"{job}.{number}", {"job": job, "device": device})

        self.run(begin())

    def grant(self, job: str, device: str, *, tell: bool = True) -> None:
        """The phone is in the hands of whoever leases it; without `tell` nobody hears of it."""
        self.begin(job, device)
        told = {
            "lease": f"lease-of-{job}", "job": job, "device": device, "serial": "S1", "tvm_host": "127.0.0.1",
            "tvm_port": 9190, "adb_port": 5999, "expires_at": "2999-11-20T13:00:00+00:00",
        }  # fmt: skip
        self.held[job] = told | {"tvm_key": "secret"}
        if tell:
            self.tell("job.progress", job, step="granted", **told)

    def end(self, job: str, result: Json | None = None, error: FarmError | None = None, state: str = "") -> None:
        """A job ends."""
        self.run(self._end(job, result, error, state))

    def until_called(self, kind: str, times: int = 1) -> None:
        """Return when the verb was asked for so often."""

        async def until() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: self.calls.count(kind) >= times)

        self.run(until())

    # -- verbs ---------------------------------------------------------------------------------------------------------

    async def on_device__list(self, call: Any) -> Json:
        await self._called("device.list")
        device = {
            "serial": "S1", "state": "ready", "reason": "", "adopted": True, "pool": "lab", "soc": "SM8650",
            "gpu": "Adreno 750", "virtual": True, "holder": self.holder, "temperature_c": 30.0, "battery_percent": 90,
            "aliases": ["android"], "read_at": None,
        }  # fmt: skip
        return {"devices": [{"name": name, **device} for name in self.devices], "host": ""}

    async def on_status(self, call: Any) -> Json:
        await self._called("status")
        return {
            "version": "0.1.0", "pid": 1, "seq": self._seq(), "tracker": {"host": "127.0.0.1", "port": 9190},
            "adb": {"socket": ""}, "keys": [], "devices": (await self.on_device__list(call))["devices"],
            "problems": [],
            "draining": False,
        }  # fmt: skip

    async def on_job__submit(self, call: Any) -> Json:
        fields = dict(call.fields)
        self.submissions.append(fields)
        await self._called("job.submit")
        spec, key = fields["spec"], fields.get("key", "")
        if self.takeover:
            self.takeover -= 1
            raise HostError("the lab's head has not answered for 5 s", Code.HEAD_AWAY)
        if key in self.keys:
            return self.keys[key]
        if spec["on"] == "nothing":
            if fields.get("must_match"):
                raise NoPhoneError("no phone matches nothing", hint="`farm device list` shows what there is")
            warnings = ["no phone matches nothing"]
        else:
            warnings = []
        devices = 1 if spec["kind"] == "tune" else spec["devices"]  # one job, whatever its phones
        many = devices != 1
        pinned = self.devices if devices == "all" else ("",) * int(devices)
        array = f"array-{len(self.jobs)}" if many else ""
        rows = [self._add(spec, device, array) for device in pinned]
        for row in rows:
            await self._tell("job.submitted", row["id"], {})
        self.keys[key] = answer = {"jobs": [dict(row) for row in rows], "array": array, "warnings": warnings}
        return answer

    async def on_job__check(self, call: Any) -> Json:
        for index, entry in enumerate(call.fields["entries"]):
            if entry["spec"]["on"] in self.refused:
                return {"jobs": index, "entry": index, "error": error_to_wire(NoPhoneError("no phone matches"))}
        return {"jobs": len(call.fields["entries"]), "entry": None, "error": None}

    async def on_job__list(self, call: Any) -> Json:
        fields = call.fields
        self.listings.append(dict(fields))
        await self._called("job.list")
        rows = [shown["job"] for shown in reversed(self.jobs.values())]
        for name, field in (("user", "user"), ("kind", "of_kind"), ("array", "array")):
            if fields.get(field):
                rows = [row for row in rows if row[name] == fields[field]]
        if fields.get("jobs"):
            rows = [row for row in rows if {row["id"], row["array"]} & set(fields["jobs"])]
        if fields.get("state"):
            rows = [row for row in rows if row["state"] in fields["state"]]
        ids = [row["id"] for row in rows]
        start = ids.index(fields["before"]) + 1 if fields.get("before") else 0
        return {"jobs": rows[start : start + fields["limit"]], "more": start + fields["limit"] < len(rows)}

    async def on_job__show(self, call: Any) -> Json:
        await self._called("job.show")
        return self._found(call.fields["job"])

    async def on_job__watch(self, call: Any) -> Json:
        await self._called("job.watch")
        wanted = [
            job
            for job, shown in self.jobs.items()
            for asked in call.fields["jobs"]
            if asked in (job, shown["job"]["array"])
        ]
        since = call.fields["since"]
        while True:
            for event in self.events:
                if event["seq"] > since and (event["subject"] in wanted or event["data"].get("job") in wanted):
                    await call.progress(**event)
            since = max(since, self._seq())
            if all(self.jobs[job]["job"]["state"] in FINAL for job in wanted):
                return {"jobs": [self.jobs[job]["job"] for job in wanted]}
            async with self._changed:
                await self._changed.wait_for(lambda: self._seq() > since)  # noqa: B023

    async def on_job__cancel(self, call: Any) -> Json:
        await self._called("job.cancel")
        asked = call.fields["job"]
        rows = []
        for job, shown in self.jobs.items():
            if asked in (job, shown["job"]["array"]):
                if shown["job"]["state"] not in FINAL:
                    why = call.fields.get("why")
                    error = UserError(why, Code.JOB_CANCELLED) if why else None
                    await self._end(job, None, error, "cancelled")
                rows.append(shown["job"])
        return {"jobs": rows}

    async def on_job__hold(self, call: Any) -> Json:
        shown = self._found(call.fields["job"])
        shown["job"]["state"] = "held"
        return {"jobs": [shown["job"]]}

    async def on_job__resume(self, call: Any) -> Json:
        shown = self._found(call.fields["job"])
        shown["job"]["state"] = "queued"
        return {"jobs": [shown["job"]]}

    async def on_job__logs(self, call: Any) -> Json:
        await self._called("job.logs")
        shown, after = self._found(call.fields["job"]), call.fields.get("after", 0)
        while call.fields["follow"] and shown["job"]["state"] not in FINAL:
            seq = self._seq()
            if after < len(self.lines):
                lines, after = self.lines[after:], len(self.lines)
                await call.progress(lines=lines, next=after, number=1)
            async with self._changed:
                await self._changed.wait_for(lambda: self._seq() > seq)  # noqa: B023
        if after < len(self.lines):
            await call.progress(lines=self.lines[after:], next=len(self.lines), number=1)
        return {"lines": [], "next": len(self.lines)}

    async def on_events(self, call: Any) -> Json:
        await self._called("events")
        since = call.fields["since"]
        while True:
            for event in self.events:
                if event["seq"] > since and call.fields.get("subject", "") in ("", event["subject"]):
                    await call.progress(**event)
                since = max(since, event["seq"])
            if not call.fields["follow"]:
                return {"seq": since}
            async with self._changed:
                await self._changed.wait_for(lambda: self._seq() > since)  # noqa: B023

    async def on_lease__list(self, call: Any) -> Json:
        await self._called("lease.list")
        leases = [
            {
                "id": held["lease"], "device": held["device"], "user": "ann", "source": "job", "lease_class": "work",
                "key": "", "job": job, "note": "", "held_s": 61.0, "expires_at": None, "session": "", "peer": "",
            }
            for job, held in self.held.items()
        ]  # fmt: skip
        return {"leases": leases, "waiting": [], "waiting_more": 0}

    async def on_explain(self, call: Any) -> Json:
        await self._called("explain")
        lines = [f"{call.fields['name']} is as it is"]
        return {"subject": call.fields["name"], "lines": lines, "operator": self.operator}

    async def on_lease__show(self, call: Any) -> Json:
        await self._called("lease.show")
        return self._held(call.fields["lease"])

    async def on_lease__extend(self, call: Any) -> Json:
        await self._called("lease.extend")
        return {"expires_at": NOW.isoformat()}

    async def on_lease__release(self, call: Any) -> Json:
        await self._called("lease.release")
        held = self._held(call.fields["lease"])
        await self._end(held["job"], {"ended": "released"}, None, "")
        return {"lease": held["lease"], "job": held["job"]}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _held(self, name: str) -> Json:
        for held in self.held.values():
            if name in (held["lease"], held["job"], held["device"]):
                return held
        raise NoSuchLeaseError

    def _seq(self) -> int:
        return self.events[-1]["seq"] if self.events else 0

    async def _called(self, kind: str) -> None:
        async with self._changed:
            self.calls.append(kind)
            self._changed.notify_all()

    async def _tell(self, kind: str, subject: str, data: Json) -> int:
        async with self._changed:
            seq = max(self._seq(), self.epoch << 32) + 1
            self.events.append({"seq": seq, "at": NOW.isoformat(), "kind": kind, "subject": subject, "data": data})
            self._changed.notify_all()
        return seq

    async def _end(self, job: str, result: Json | None, error: FarmError | None, state: str) -> None:
        shown = self.jobs[job]
        state = state or ("failed" if error else "done")
        wire = error_to_wire(error) if error else None
        shown["job"] |= {"state": state, "ended_at": NOW.isoformat(), "error": wire, "waits": ""}
        shown["result"] = result
        self.held.pop(job, None)
        await self._tell(f"job.{state}", job, {"error": wire} if wire else {})

    def _add(self, spec: Json, device: str, array: str) -> Json:
        job = f"job-{len(self.jobs) + 1:04d}"
        row = {
            "id": job, "kind": spec["kind"], "name": spec.get("name") or spec.get("command") or spec.get("note", ""),
            "user": "ann", "state": "held" if spec["hold"] else "queued", "selector": spec["on"], "device": device,
            "on": "", "array": array, "priority": spec["priority"], "submitted_at": NOW.isoformat(),
            "ended_at": None, "attempts": 0, "error": None, "waits": "pixel is held by bob for 12 s",
        }  # fmt: skip
        self.jobs[job] = {"job": row, "spec": spec, "attempts": [], "result": None}
        return row

    def _found(self, prefix: str) -> Json:
        found = [shown for job, shown in self.jobs.items() if job.startswith(prefix)]
        if len(found) != 1:
            raise UserError(f"there is no job {prefix!r}", hint="farm job list")
        return found[0]
