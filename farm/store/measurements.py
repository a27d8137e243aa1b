"""Measurements of benches and programs by model: small rows beside the results, for histories and nominal speeds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Select, Text, func, insert, select, type_coerce

from farm.common.durations import is_number
from farm.measure.conditions import Verdict
from farm.model.job import MEASURING_KINDS, Attempt, AttemptState, Job
from farm.store.columns import as_json
from farm.store.database import TableAccess, insert_new
from farm.store.schema import measurement, nominal

NOMINAL_OF = 5  # measurements in a row of a user, in an identity epoch, that agree say what is nominal for that user
MIN_USERS = 3  # whose nominals agree fix that of all: what one user's jobs report, true or false, moves no other's
MAX_READINGS = 200  # of one kernel that are looked at
AGREE = 0.1  # they lie within this part of their median: a phone or host that was busy for a day fixes nothing
OFFSET = "reference_offset"  # farm.measure.assess: the reference kernel's time is far from its nominal
MAX_KERNELS = 16  # reference kernels of one phone: one per TVM version and processor
# What a history shows of a result, besides where it was measured.
_SUMMARY = (
    "estimate", "verdict", "reasons", "target", "precision", "tuned", "textures", "tvm", "soc", "gpu", "bundle",
    "library_sha256", "runtime", "placement", "notes",
)  # fmt: skip
log = logging.getLogger(__name__)
_SOURCES = ("branch", "commit")  # of the job's spec: from what the model was built


@dataclass(frozen=True, slots=True)
class Measurement:
    """One bench of one model on one phone."""

    seq: int
    job: str
    model: str  # SHA-256 of its file, or of the package
    name: str
    device: str
    epoch: str  # the phone's build fingerprint
    kernel: str  # key of the reference kernel; "" when there was none
    reference_s: float | None
    nominal_s: float | None  # of the kernel: the estimate was given at it; None without a kernel
    at: datetime
    summary: Mapping[str, Any]  # of its certificate, and `user`, whose job it was

    @property
    def user(self) -> str:
        """Whose job it was; "": unknown."""
        return str(self.summary.get("user", ""))


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model that was measured, under one of its names."""

    model: str
    name: str
    count: int
    latest: int  # seq of the newest measurement


class MeasurementTable(TableAccess):
    """Statements over measurements."""

    def models(self, asked: str, limit: int = 50) -> tuple[MeasuredModel, ...]:
        """The measured models of that name, or whose hash begins so (8 characters at least); the latest first."""
        of_name = measurement.c.name == asked
        of_hash = measurement.c.model.between(asked, f"{asked}g") if len(asked) >= 8 else None  # "g": behind hex
        return tuple(each for where in (of_name, of_hash) if where is not None for each in self._models(where, limit))

    def page(
        self, model: str | None, *, device: str = "", before: int | None = None, limit: int = 100
    ) -> tuple[Measurement, ...]:
        """Measurements of a model (its whole hash) or of all, newest first; older than number `before` if given."""
        wanted = select(measurement)
        if model is not None:
            wanted = wanted.where(measurement.c.model == model)
        if device:
            wanted = wanted.where(measurement.c.device.concat("") == device)  # not by the index of devices
        if before is not None:
            wanted = wanted.where(measurement.c.seq < before)
        wanted = wanted.order_by(measurement.c.seq.desc()).limit(limit)
        return tuple(Measurement(**row) for row in self._database.rows(wanted))

    def times(self, after: int, limit: int = 20_000) -> Sequence[tuple[int, str, str, str, datetime]]:
        """(seq, job, model's name, device, at) of the newest measurements behind number `after`, newest first."""
        columns = [measurement.c[name] for name in ("seq", "job", "name", "device", "at")]
        wanted = select(*columns).where(measurement.c.seq > after).order_by(measurement.c.seq.desc()).limit(limit)
        with self._database.reading() as connection:
            return [tuple(row) for row in connection.execute(wanted)]

    def latest_nominal_s(self, device: str, epoch: str, kernel: str, user: str) -> float | None:
        """The nominal of a reference kernel on a phone now: of all users, else of this user's newest bench there."""
        key = {"device": device, "epoch": epoch, "kernel": kernel}
        with self._database.reading() as connection:
            fixed = connection.execute(_fixed(key)).scalar()
            if fixed is not None:
                return float(fixed)
            return next(iter(_figures(connection, key, measurement.c.nominal_s, user, newest=True)), None)

    def nominal_s(self, device: str, epoch: str, user: str) -> dict[str, float]:
        """The nominal time of each reference kernel on a phone, seconds, for a user's next measurement.

        Once `MIN_USERS` users agree it is theirs. Until then it comes from the user's own measurements: the median of
        the first `NOMINAL_OF` in a row that agree, or, until there are such, of the newest, and moves.
        """
        with self._database.reading() as connection:
            there = (nominal.c.device == device, nominal.c.epoch == epoch)
            fixed = connection.execute(select(nominal.c.kernel, nominal.c.reference_s).where(*there))
            found = {str(kernel): float(seconds) for kernel, seconds in fixed}
            kernel: str | None = ""  # kernels one after the other, each by its place in the index
            for _ in range(MAX_KERNELS):
                mine = (measurement.c.device == device, measurement.c.epoch == epoch, measurement.c.kernel > kernel)
                kernel = connection.execute(select(func.min(measurement.c.kernel)).where(*mine)).scalar()
                if kernel is None:
                    break
                key = {"device": device, "epoch": epoch, "kernel": kernel}
                if kernel not in found and (own := _figures(connection, key, measurement.c.reference_s, user)):
                    found[kernel] = _own_nominal(own)
        return found

    def _models(self, where: ColumnElement[bool], limit: int) -> Sequence[MeasuredModel]:
        latest = func.max(measurement.c.seq)
        wanted = (
            select(measurement.c.model, measurement.c.name, func.count().label("count"), latest.label("latest"))
            .where(where)
            .group_by(measurement.c.model, measurement.c.name)
            .order_by(latest.desc())
            .limit(limit)
        )
        return [MeasuredModel(**row) for row in self._database.rows(wanted)]


def insert_measurement(connection: Connection, job: Job, ended: Attempt, result: Mapping[str, Any] | None) -> None:
    """Insert the measurement of a bench that ended; enough users' benches fix the phone's nominal speed."""
    certificate = (result or {}).get("certificate")
    if job.kind not in MEASURING_KINDS or ended.state is not AttemptState.DONE or not isinstance(certificate, Mapping):
        return
    if not _is_certificate(certificate):
        log.warning("the result of job %s is in no history: its certificate is not of the form that farm makes", job.id)
        return
    reference = certificate.get("reference") or {}
    epoch, kernel = str(certificate.get("epoch", "")), str(reference.get("kernel", ""))
    connection.execute(
        insert(measurement).values(
            job=job.id,
            # Of a package its own hash: nothing proves from which model it was made. A program may have no model.
            model=str(job.spec.get("model") or job.spec.get("program", "")),
            name=str(job.spec.get("name", "")),
            device=ended.device,
            epoch=epoch,
            kernel=kernel,
            reference_s=reference.get("median_s") if _counts_for_nominal(certificate) else None,
            nominal_s=reference.get("nominal_s"),
            at=ended.ended_at,
            summary={name: certificate[name] for name in _SUMMARY if name in certificate}
            | {name: job.spec[name] for name in _SOURCES if job.spec.get(name)}
            | ({"inputs": inputs} if (inputs := _inputs(job.spec)) else {})
            | {"user": job.user},
        )
    )
    if kernel:
        _fix_nominal(connection, ended, epoch, kernel)


def _is_certificate(found: Mapping[str, Any]) -> bool:
    """Whether all who read histories can read it: a hostile model may have had a hand in its worker's report."""
    estimate, reference, reasons = found.get("estimate"), found.get("reference") or {}, found.get("reasons", ())
    return (
        found.get("verdict") in tuple(Verdict)
        and isinstance(reference, Mapping)
        and all(is_number(reference.get(name)) for name in ("median_s", "nominal_s") if reference.get(name) is not None)
        and (estimate is None or (isinstance(estimate, Mapping) and is_number(estimate.get("median_s"))))
        and isinstance(reasons, list | tuple)
        and all(isinstance(each, Mapping) for each in reasons)
    )


def _inputs(spec: Mapping[str, Any]) -> str:
    """The shapes and types that a job gave its model's inputs: `x:[1,64], x:float16`; "" for none."""
    shapes = (f"{name}:[{','.join(map(str, shape))}]" for name, shape in (spec.get("shapes") or {}).items())
    types = (f"{name}:{dtype}" for name, dtype in (spec.get("dtypes") or {}).items())
    return ", ".join((*sorted(shapes), *sorted(types)))


def _counts_for_nominal(certificate: Mapping[str, Any]) -> bool:
    """Whether the time of its reference kernel counts for the phone's nominal speed: that of a rejected bench does not.

    A bench that is rejected only because that time is far from the nominal counts: the nominal may be wrong.
    """
    if certificate.get("verdict") != "rejected":
        return True
    reasons = [each for each in certificate.get("reasons", ()) if each.get("verdict") == "rejected"]
    return bool(reasons) and all(each.get("code") == OFFSET for each in reasons)


def _fix_nominal(connection: Connection, ended: Attempt, epoch: str, kernel: str) -> None:
    """Store the nominal speed for all users, once, when enough of them agree."""
    key = {"device": ended.device, "epoch": epoch, "kernel": kernel}
    if connection.execute(_fixed(key)).scalar() is not None:
        return
    counts = measurement.c.reference_s.is_not(None)
    wanted = select(measurement.c.reference_s, measurement.c.summary).where(*_of(key), counts)
    readings: dict[str, list[float]] = {}
    for seconds, summary in connection.execute(wanted.order_by(measurement.c.seq.desc()).limit(MAX_READINGS)):
        readings.setdefault(str(summary.get("user", "")), []).append(seconds)
    own = [usual for each in readings.values() if (usual := _agreed(each[:NOMINAL_OF])) is not None]
    usual = median(own) if len(own) >= MIN_USERS else 0.0
    agreeing = [each for each in own if abs(each - usual) <= AGREE * usual]
    if len(agreeing) >= MIN_USERS:
        insert_new(connection, nominal, {**key, "reference_s": float(median(agreeing)), "at": ended.ended_at})


def _fixed(key: Mapping[str, str]) -> Select[Any]:
    """The nominal seconds of all users."""
    return select(nominal.c.reference_s).where(*(nominal.c[name] == value for name, value in key.items()))


def _figures(
    connection: Connection, key: Mapping[str, str], figure: Column[Any], user: str, *, newest: bool = False
) -> list[float]:
    """A figure of one user's measurements with a kernel on a phone, the oldest first, or the newest."""
    of_user = type_coerce(measurement.c.summary, Text).endswith(as_json({"user": user})[1:], autoescape=True)
    wanted = select(figure, measurement.c.summary).where(*_of(key), of_user, figure.is_not(None))
    order = measurement.c.seq.desc() if newest else measurement.c.seq
    rows = connection.execute(wanted.order_by(order).limit(MAX_READINGS))
    return [seconds for seconds, summary in rows if summary["user"] == user]  # SQLite's LIKE takes Ann for ann


def _of(key: Mapping[str, str]) -> Iterator[ColumnElement[bool]]:
    return (measurement.c[name] == value for name, value in key.items())


def _own_nominal(readings: Sequence[float]) -> float:
    """The median of the first in a row that agree, else of the newest. There is one at least."""
    for end in range(NOMINAL_OF, len(readings) + 1):
        if (agreed := _agreed(readings[end - NOMINAL_OF : end])) is not None:
            return agreed
    return median(readings[-NOMINAL_OF:])


def _agreed(readings: Sequence[float]) -> float | None:
    """The median of `NOMINAL_OF` readings that agree; None of others."""
    usual = median(readings)
    return usual if len(readings) == NOMINAL_OF and max(readings) - min(readings) <= AGREE * usual else None
