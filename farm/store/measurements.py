"""Measurements by model: small rows beside the results, for histories and nominal speeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any, get_args

from sqlalchemy import ColumnElement, Connection, Select, Text, func, insert, or_, select, type_coerce

from farm.common.durations import is_number
from farm.measure.conditions import Verdict
from farm.measure.metrics import are_values
from farm.model.job import MEASURING_KINDS, Attempt, AttemptState, Job
from farm.model.specs import EarlierBench, MetricName
from farm.store.columns import as_json
from farm.store.database import TableAccess, insert_new
from farm.store.schema import measurement, nominal

NOMINAL_OF = 5  # measurements in a row of a user, in an identity epoch, that agree say what is nominal for that user
MIN_USERS = 3  # whose nominals agree fix that of all: what one user's jobs report, true or false, moves no other's
MAX_READINGS = 200  # of one kernel that are looked at
AGREE = 0.1  # they lie within this part of their median: a phone or host that was busy for a day fixes nothing
OFFSET = "reference_offset"  # farm.measure.assess: the reference kernel's time is far from its nominal
WIDE, FOLLOWS = "wide", "follows"  # likewise: the interval is too wide; its amount for that distance
MAX_OTHER_AMOUNTS = 0.48  # the interval of all amounts but that one is not beyond ±50 %
MAX_EARLIER = 40  # benches of a model that show how far it follows the clock
MIN_S, MAX_S = 1e-15, 1e9  # of a time in a report: no factor between two leaves the range of numbers
MAX_SUMMARY_BYTES = 64 << 10  # as JSON; that of a bench is about 2 kB, and is kept for years
MAX_KERNELS = 16  # reference kernels of one phone: one per TVM version and processor
# What a history shows of a result, besides where it was measured.
_SUMMARY = (
    "estimate", "verdict", "reasons", "target", "precision", "tuned", "textures", "tvm", "soc", "gpu", "bundle",
    "library_sha256", "runtime", "placement", "ran_on", "offloaded", "notes", "p90_s", "p99_s", "number",
    "quality", "values", "method",
)  # fmt: skip
log = logging.getLogger(__name__)
_SOURCES = ("branch", "commit")  # of the job's spec: from what the model was built


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one job measured of one model on one phone."""

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
        """(seq, job, model's name, device, at) of the newest benches behind number `after`, newest first."""
        columns = [measurement.c[name] for name in ("seq", "job", "name", "device", "at")]
        # What other kinds measure has no rhythm of its own.
        of_benches = or_(*(measurement.c.job.like(f"{kind}-%") for kind in MEASURING_KINDS))
        wanted = select(*columns).where(measurement.c.seq > after, of_benches)
        wanted = wanted.order_by(measurement.c.seq.desc()).limit(limit)
        with self._database.reading() as connection:
            return [tuple(row) for row in connection.execute(wanted)]

    def agreed_nominal_s(self, device: str, epoch: str, kernel: str, user: str) -> float | None:
        """The nominal of a reference kernel on a phone: of all users, else of this user's benches if some agree."""
        key = {"device": device, "epoch": epoch, "kernel": kernel}
        with self._database.reading() as connection:
            fixed = connection.execute(_fixed(key)).scalar()
            return float(fixed) if fixed is not None else _first_agreed(_readings(connection, key, user))

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
                if kernel not in found and (own := _readings(connection, key, user)):
                    found[kernel] = _own_nominal(own)
        return found

    def earlier(self, device: str, epoch: str, user: str, model: str) -> tuple[EarlierBench, ...]:
        """A user's newest benches of a model on a phone that count for its nominal speed."""
        key = {"device": device, "epoch": epoch, "model": model}
        counts = (measurement.c.reference_s.is_not(None), measurement.c.nominal_s.is_not(None))
        wanted = select(measurement).where(*_of(key), *counts).order_by(measurement.c.seq.desc()).limit(MAX_EARLIER)
        found = (Measurement(**row) for row in self._database.rows(wanted))
        return tuple(bench for each in found if each.user == user and (bench := _earlier(each)) is not None)

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
    """Insert the measurement of a bench, or what another kind's certificate has; enough benches fix nominal speeds."""
    certificate = (result or {}).get("certificate")
    if ended.state is not AttemptState.DONE or not isinstance(certificate, Mapping):
        return
    if job.kind not in MEASURING_KINDS and not certificate.get("values") and "quality" not in certificate:
        return
    summary = (
        {name: certificate[name] for name in _SUMMARY if name in certificate}
        | {name: job.spec[name] for name in _SOURCES if job.spec.get(name)}
        | ({"inputs": inputs} if (inputs := _inputs(job.spec)) else {})
        | {"user": job.user}
    )
    if not _is_certificate(certificate) or len(as_json(summary)) > MAX_SUMMARY_BYTES:
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
            summary=summary,
        )
    )
    if kernel:
        _fix_nominal(connection, ended, epoch, kernel)


def _is_certificate(found: Mapping[str, Any]) -> bool:
    """Whether all who read histories can read it: a hostile model may have had a hand in its worker's report."""
    reference, runtime, quality = found.get("reference") or {}, found.get("runtime") or {}, found.get("quality")
    return (
        found.get("verdict") in tuple(Verdict)
        and all(found.get(name) is None or is_right(found[name]) for name, is_right in _FORM.items())
        and (found.get("estimate") is None or found["estimate"].get("median_s") is not None)
        and isinstance(reference.get("kernel", ""), str)
        and (not runtime or all(isinstance(runtime.get(name), str) for name in ("name", "version")))
        and (quality is None or _is_quality(quality))
    )


def _is_text(found: object) -> bool:
    return isinstance(found, str)


def _is_flat(found: object) -> bool:
    """Whether it is an object of texts and numbers, whose times are seconds that something may take."""
    return isinstance(found, Mapping) and all(
        each is None
        or (is_number(each) and MIN_S <= each <= MAX_S if name.endswith("_s") else isinstance(each, str | int | float))
        for name, each in found.items()
    )


def _is_reason(found: object) -> bool:
    return isinstance(found, Mapping) and all(
        each is None or is_number(each) if name == "amount" else isinstance(each, str) for name, each in found.items()
    )


def _all_are(is_right: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda found: isinstance(found, list | tuple) and all(map(is_right, found))


# What readers take each field of a certificate for; all but the verdict may be missing, or None.
_FORM: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        ("target", "precision", "tvm", "soc", "gpu", "bundle", "library_sha256", "placement", "ran_on", "method"),
        _is_text,
    ),
    **dict.fromkeys(("tuned", "textures"), lambda found: isinstance(found, bool)),
    **dict.fromkeys(("p90_s", "p99_s", "number", "offloaded"), is_number),
    **dict.fromkeys(("estimate", "reference", "runtime", "quality"), _is_flat),
    **dict.fromkeys(("reasons", "amounts"), _all_are(_is_reason)),
    "notes": _all_are(_is_text),
    "values": are_values,
}


def _is_quality(found: Mapping[str, Any]) -> bool:
    return found.get("metric") in get_args(MetricName) and all(
        is_number(found.get(name)) for name in ("value", "low", "high", "count")
    )


def _inputs(spec: Mapping[str, Any]) -> str:
    """The shapes and types that a job gave its model's inputs: `x:[1,64], x:float16`; "" for none."""
    shapes = (f"{name}:[{','.join(map(str, shape))}]" for name, shape in (spec.get("shapes") or {}).items())
    types = (f"{name}:{dtype}" for name, dtype in (spec.get("dtypes") or {}).items())
    return ", ".join((*sorted(shapes), *sorted(types)))


def _counts_for_nominal(certificate: Mapping[str, Any]) -> bool:
    """Whether the time of its reference kernel counts for the phone's nominal speed: that of a rejected bench does not.

    A bench that is rejected only because that time is far from the nominal counts: the nominal may be wrong. Its
    interval is wide for it, too.
    """
    if certificate.get("verdict") != "rejected":
        return True
    codes = {str(each.get("code")) for each in certificate.get("reasons", ()) if each.get("verdict") == "rejected"}
    return OFFSET in codes and codes <= {OFFSET, *([WIDE] if _is_narrow_at_nominal(certificate) else ())}


def _is_narrow_at_nominal(certificate: Mapping[str, Any]) -> bool:
    """Whether without the amount for the clock's distance from its nominal the interval would not be rejected."""
    others = [each for each in certificate.get("amounts") or () if each.get("code") != FOLLOWS]
    return bool(others) and sum(each.get("amount") or 0.0 for each in others) <= MAX_OTHER_AMOUNTS


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


def _earlier(row: Measurement) -> EarlierBench | None:
    """The bench of a row; None: it has no numbers."""
    median_s: Any = (row.summary.get("estimate") or {}).get("median_s")
    if not is_number(median_s) or not (median_s > 0 and row.reference_s and row.nominal_s):
        return None
    library, placement = (str(row.summary.get(name) or "") for name in ("library_sha256", "placement"))
    return EarlierBench(library, placement, row.kernel, row.reference_s, median_s * row.reference_s / row.nominal_s)


def _readings(connection: Connection, key: Mapping[str, str], user: str) -> list[float]:
    """The times of a kernel in one user's benches on a phone that count, the oldest first."""
    of_user = type_coerce(measurement.c.summary, Text).endswith(as_json({"user": user})[1:], autoescape=True)
    seconds = measurement.c.reference_s
    wanted = select(seconds, measurement.c.summary).where(*_of(key), of_user, seconds.is_not(None))
    rows = connection.execute(wanted.order_by(measurement.c.seq).limit(MAX_READINGS))
    return [seconds for seconds, summary in rows if summary["user"] == user]  # SQLite's LIKE takes Ann for ann


def _of(key: Mapping[str, str]) -> Iterator[ColumnElement[bool]]:
    return (measurement.c[name] == value for name, value in key.items())


def _own_nominal(readings: Sequence[float]) -> float:
    """The median of the first in a row that agree, else of the newest. There is one at least."""
    return _first_agreed(readings) or median(readings[-NOMINAL_OF:])


def _first_agreed(readings: Sequence[float]) -> float | None:
    """The median of the first in a row that agree; None: there are no such."""
    ends = range(NOMINAL_OF, len(readings) + 1)
    return next(filter(None, (_agreed(readings[end - NOMINAL_OF : end]) for end in ends)), None)


def _agreed(readings: Sequence[float]) -> float | None:
    """The median of `NOMINAL_OF` readings that agree; None of others."""
    usual = median(readings)
    return usual if len(readings) == NOMINAL_OF and max(readings) - min(readings) <= AGREE * usual else None
