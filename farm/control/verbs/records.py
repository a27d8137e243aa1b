"""Verbs about measured and tuned models: measurements, sets of tuning records, and artifacts that killed phones.

The content of a set is the clients' business: here it is an artifact. All users may see poisoned artifacts, the holder
of a phone may report what killed there, operators let one be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Annotated, Any

from pydantic import Field

from farm.common.errors import Code, NotAllowedError, UserError
from farm.common.limits import MAX_ARTIFACTS
from farm.common.verbs import MAX_COUNT, Count, Sha256, verb
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Role
from farm.control.server import ControlCall
from farm.control.verbs import VerbGroup, fitting, json_of
from farm.jobs.poison import REFUSED_AFTER, PoisonLedger
from farm.leasing.model import Holder
from farm.model.identity import target_words
from farm.store.artifacts import KeptSet, RecordSets, check_set
from farm.store.measurements import Measurement, MeasurementTable

SHOWN_SETS = 200

Name = Annotated[str, Field(min_length=1, max_length=255)]
SetNumber = Annotated[int, Field(ge=1, lt=1 << 63)]
MAX_PAGE = 500  # rows of about 1 kB
MAX_MODELS = 100
TIMES = ("median_s", "low_s", "high_s")


no_such_set_error = partial(UserError, code=Code.NO_SUCH_RECORDS)


class RecordsVerbs(VerbGroup):
    """Verbs about kept sets."""

    def __init__(self, sets: RecordSets, artifacts: ArtifactFolder) -> None:
        self._sets = sets
        self._artifacts = artifacts

    @verb("records.list", Role.VIEWER)
    async def list(
        self, name: str = "", job: str = "", limit: Annotated[int, Field(ge=1, le=1000)] = SHOWN_SETS
    ) -> Mapping[str, Any]:
        """The newest sets."""
        found = await self._sets.in_thread(self._sets.page, name=name, job=job, limit=limit)
        return {"sets": fitting([_set_row(each) for each in found])}

    @verb("records.show", Role.VIEWER)
    async def show(self, call: ControlCall, set: Name) -> Mapping[str, Any]:  # noqa: A002 (the field's public name)
        """One set: by its number, or by a model's name the caller's newest; without one, the only one."""
        return _set_row(await self._sets.in_thread(self._found, set, call.caller.user), whole=True)

    @verb("records.keep", Role.USER, subject="name", order=("artifact",))
    async def keep(
        self,
        call: ControlCall,
        model: Sha256,
        name: Name,
        target: Any,
        artifact: Sha256,
        records: Count,
        best: dict[str, Any],
    ) -> Mapping[str, Any]:
        """Keep an artifact as a version of a model's records.

        Raises:
            UserError: there is no such artifact, or target or best are none or too large.
        """
        check_set(target, best)
        await self._artifacts.ensure(artifact)
        version = await self._sets.save(
            model=model,
            name=name,
            target=target,
            artifact=artifact,
            records=records,
            best=best,
            user=call.caller.user,
            job="",
        )
        return {"version": version}

    @verb("records.remove", Role.USER, subject="set")
    async def remove(self, call: ControlCall, set: SetNumber) -> Mapping[str, Any]:  # noqa: A002
        """Forget a set: its owner and operators may; answers with the removed set."""
        kept = await self._sets.in_thread(self._found, str(set), call.caller.user)
        if call.caller.role < Role.OPERATOR and call.caller.user != kept.user:
            owner = f"{kept.user}'s" if kept.user else "without an owner: its job is forgotten"
            raise NotAllowedError(f"set {set} is {owner}", hint="its owner or an operator may remove it")
        if not await self._sets.remove(set):
            raise no_such_set_error(f"there is no set of records {set}", hint="farm records list")
        return _set_row(kept)

    def _found(self, which: str, user: str) -> KeptSet:
        if which.isascii() and which.isdigit() and len(which) < 19:
            found = self._sets.get(int(which))
            if found is None:
                raise no_such_set_error(f"there is no set of records {which}", hint="farm records list")
            return found
        newest = self._sets.newest(which)
        if not newest:
            raise no_such_set_error(f"there are no records of a model {which!r}", hint="farm records list")
        newest = tuple(each for each in newest if each.user == user) or newest
        if len(newest) > 1:
            numbers = ", ".join(f"{each.id} ({target_words(each.target)}, {each.user or '-'})" for each in newest[:8])
            raise no_such_set_error(
                f"{which} has records for several models or targets, or of several users", hint=f"say which: {numbers}"
            )
        return self._found(str(newest[0].id), user)


def _set_row(kept: KeptSet, *, whole: bool = False) -> dict[str, Any]:
    """A set as the daemon sends it; `whole`: with the best of each task."""
    shown = ("name", "version", "target", "records", "user", "job", "at", "model", "artifact")
    return {"set": kept.id, **json_of(kept, *shown, *(["best"] if whole else []))}


class HistoryVerbs(VerbGroup):
    """Verbs over the store's measurements. They grow with the farm: read in a thread."""

    def __init__(self, measurements: MeasurementTable) -> None:
        self._measurements = measurements

    @verb("history.models", Role.VIEWER)
    async def models(self, model: Annotated[str, Field(min_length=1, max_length=255)]) -> Mapping[str, Any]:
        """Models that were measured, of a name or whose hash begins so (8 characters or more), under each name."""
        found = await self._measurements.in_thread(self._measurements.models, model, MAX_MODELS)
        return {"models": [json_of(each, "model", "name", "count") for each in found]}

    @verb("history.list", Role.VIEWER)
    async def page(
        self,
        model: Sha256 | None = None,
        device: Annotated[str, Field(max_length=255)] = "",
        before: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None,
        limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100,
    ) -> Mapping[str, Any]:
        """A page of a model's measurements, or of all, newest first, as their jobs reported them.

        `today` has each one's times at the phone's agreed nominal speed, for comparisons over time; null without one.
        """
        measurements = self._measurements
        nominal_s = cache(measurements.agreed_nominal_s)

        def read() -> Mapping[str, Any]:
            page = measurements.page(model, device=device, before=before, limit=limit + 1)
            found = ((each, nominal_s(each.device, each.epoch, each.kernel, each.user)) for each in page[:limit])
            rows = fitting([_measurement_row(each, seconds) for each, seconds in found])
            return {"rows": rows, "more": len(page) > len(rows)}

        return await self._measurements.in_thread(read)


def _measurement_row(each: Measurement, nominal_s: float | None) -> dict[str, Any]:
    """`nominal_s`: today's, of its reference kernel; None: none is agreed."""
    today = None
    if nominal_s and each.nominal_s:
        estimate, factor = each.summary.get("estimate") or {}, nominal_s / each.nominal_s
        times = {name: estimate[name] * factor for name in TIMES if estimate.get(name) is not None}
        today = {"nominal_s": nominal_s, **times}
    return {
        **json_of(each, "seq", "job", "model", "name", "device", "epoch", "at"),
        "reference": {"kernel": each.kernel, "median_s": each.reference_s, "nominal_s": each.nominal_s},
        "today": today,
        **each.summary,
    }


class PoisonVerbs(VerbGroup):
    """Verbs about poison."""

    def __init__(self, ledger: PoisonLedger, holders: Callable[[], Iterable[Holder]]) -> None:
        """`holders`: the current leases."""
        self._ledger = ledger
        self._holders = holders

    @verb("poison.list", Role.VIEWER)
    async def list(self) -> Mapping[str, Any]:
        """Artifacts that killed, the latest first."""
        return await self._ledger.in_thread(self._ledger.rows)

    @verb("poison.check", Role.VIEWER)
    async def refused(
        self, call: ControlCall, artifacts: Annotated[tuple[Sha256, ...], Field(max_length=MAX_ARTIFACTS)]
    ) -> Mapping[str, Any]:
        """Those of the artifacts that are not run any more for the caller."""
        return {"poisoned": sorted(await self._ledger.in_thread(self._ledger.refused, artifacts, call.caller.user))}

    @verb("poison.report", Role.USER, subject="device", order=("artifact",))
    async def report(
        self,
        call: ControlCall,
        artifact: Sha256,
        device: str,
        what: Annotated[str, Field(max_length=1000)],
        kills: Annotated[int, Field(ge=1, le=REFUSED_AFTER)] = 1,
    ) -> Mapping[str, Any]:
        """Record that an artifact killed its process on a phone of the caller; an operator's report counts for all."""
        user = call.caller.user
        held = (each.lease for each in self._holders() if each.lease.device == device)
        lease = next((lease for lease in held if lease.request.user == user), None)
        if lease is None:
            raise NotAllowedError(
                f"{device} is not yours now", hint="only the holder of a phone may report what killed there"
            )
        seen = call.caller.role >= Role.OPERATOR
        await self._ledger.report(artifact, device, what, kills, user=user, job=lease.request.job, seen=seen)
        return {"artifact": artifact}

    @verb("poison.forget", Role.OPERATOR, subject="artifact")
    async def forget(self, call: ControlCall, artifact: Sha256) -> Mapping[str, Any]:
        """Let an artifact be run again."""
        await self._ledger.forget(artifact, call.caller.user)
        return {"artifact": artifact}
