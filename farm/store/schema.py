"""Tables of the farm's database, for SQLite and PostgreSQL alike.

The database is the last guard: CHECKs, foreign keys and unique indexes forbid illegal states, whatever the daemon
believes. Times are seconds since 1970 (UTC); JSON columns hold what docs/protocol.md and docs/reference-jobs.md
describe. A change of a table comes with a revision in farm/store/migrations and a new SCHEMA_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    TextClause,
    UniqueConstraint,
)
from sqlalchemy import text as sql

from farm.model.health import Health
from farm.model.identity import DeviceIdentity
from farm.model.job import FINAL, AttemptState, JobState
from farm.model.requests import LeaseClass, LeaseSource
from farm.store.columns import (
    CheckedType,
    EnumText,
    Flag,
    LooseJson,
    ObjectJson,
    RecordJson,
    StrictJson,
    UtcTime,
    Word,
    json_object,
    serial_number,
)

# Databases of earlier versions were written during development: they are refused.
FIRST_SCHEMA_VERSION = 14  # of the first release
SCHEMA_VERSION = 16

metadata = MetaData()


def _one_of(column: str, values: Iterable[str], name: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=name)


def _where(condition: str) -> dict[str, Any]:
    """Of a partial index, for both engines."""
    return {"sqlite_where": sql(condition), "postgresql_where": sql(condition)}


def _host() -> Column[str]:
    """Of a row about a phone, before its serial: adb's serials repeat, each host may have an emulator-5554."""
    return Column("host", Word, primary_key=True, server_default="")  # "": the only host of the database


# schema_version; epoch (grows with every start of the daemon: the upper part of every fence and event number);
# serving (1 from start to orderly stop); on a server until (ms since 1970 by its clock: see farm.store.term), events
# (see farm.store.event_numbers), starts (the number of the latest start of a host whose head is apart), lab (its id).
meta = Table(
    "meta",
    metadata,
    Column("name", Word, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

# Phones that were configured or adopted; a phone that adb only listed has no row.
device = Table(
    "device",
    metadata,
    _host(),
    Column("serial", Word, primary_key=True),  # as adb lists it there
    Column("name", Word, nullable=False, unique=True),  # over all hosts: jobs, leases and results have it
    Column("hardware_serial", Word, nullable=False, server_default=""),
    Column("pool", Word, nullable=False, server_default=""),
    Column("adopted", Flag, nullable=False),
    Column("service", Word, nullable=False, server_default="in"),
    Column("ordered_by", Word, nullable=False, server_default=""),  # user who took it out of service; "": unknown
    Column("ordered_at", UtcTime),
    Column("address", Word, nullable=False, server_default=""),  # HOST:PORT of a network phone
    Column("labels", StrictJson(json_object), nullable=False, server_default="{}"),  # object of labels set by hand
    Column("identity", RecordJson(DeviceIdentity)),  # as it was last identified; NULL: it never was
    Column("health", RecordJson(Health)),  # a recent probe, the last one before it went away
    Column("health_at", UtcTime),  # when that was read
    CheckConstraint("adopted IN (0, 1)", name="device_adopted"),
    _one_of("service", ("in", "draining", "maintenance"), "device_service"),
    CheckConstraint("service <> 'in' OR ordered_at IS NULL", name="device_in_service_by_no_order"),
)

alias = Table(
    "alias",
    metadata,
    Column("alias", Word, primary_key=True),
    Column("selector", Word, nullable=False),
)

# The lab's configuration: TOML that every host puts in place of those keys of its own file. At most one row.
lab_config = Table(
    "lab_config",
    metadata,
    Column("name", Word, primary_key=True),
    Column("text", Word, nullable=False),
    Column("by", Word, nullable=False),
    Column("at", UtcTime, nullable=False),
)

# Each distinct selector once: rows refer to it by number. There are few, and they stay.
selector = Table(
    "selector",
    metadata,
    Column("id", serial_number(), primary_key=True),
    Column("text", Word, nullable=False, unique=True),
)

# One submit with an idempotency key: the jobs it made.
submission = Table(
    "submission",
    metadata,
    Column("id", serial_number(), primary_key=True),
    Column("user", Word, nullable=False),
    Column("key", Word, nullable=False),
    UniqueConstraint("user", "key", name="submission_once"),
)

job = Table(
    "job",
    metadata,
    Column("seq", serial_number(), primary_key=True),  # order of submission
    Column("id", Word, nullable=False, unique=True),
    Column("submission", ForeignKey("submission.id")),
    Column("kind", Word, nullable=False),
    Column("user", Word, nullable=False),
    Column("spec", StrictJson(json_object), nullable=False),
    Column("selector", ForeignKey("selector.id"), nullable=False),
    Column("submitted_at", UtcTime, nullable=False),
    Column("state", EnumText(JobState), nullable=False),
    Column("device", Word, nullable=False),
    Column("avoid", StrictJson(frozenset), nullable=False),  # list of device names
    Column("array", Word, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("lease_class", EnumText(LeaseClass), nullable=False),
    Column("timeout_s", Double, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("deadline", UtcTime),
    Column("after", StrictJson(tuple), nullable=False),  # list of job ids
    Column("attempts", Integer, nullable=False),
    Column("uncounted", Integer, nullable=False),
    Column("not_before", UtcTime),
    Column("error", StrictJson(json_object)),
    Column("ended_at", UtcTime),
    _one_of("state", JobState, "job_state"),
    _one_of("lease_class", LeaseClass, "job_lease_class"),
    CheckConstraint(
        f"(state IN ({', '.join(sorted(repr(state.value) for state in FINAL))})) = (ended_at IS NOT NULL)",
        name="job_ended_when_over",
    ),
    CheckConstraint("uncounted BETWEEN 0 AND attempts", name="job_attempts_add_up"),
)
Index("job_live", job.c.seq, **_where("ended_at IS NULL"))
Index("job_of_user", job.c.user, job.c.seq)
Index("job_of_state", job.c.state, job.c.seq)
Index("job_of_kind", job.c.kind, job.c.seq)
Index("job_of_array", job.c.array, job.c.seq, sqlite_where=sql("array <> ''"), postgresql_where=sql("\"array\" <> ''"))
Index("job_of_submission", job.c.submission)
Index("job_ended", job.c.ended_at)

# Results of jobs; apart from the job so that lists need not read past them.
result = Table(
    "result",
    metadata,
    Column("job", ForeignKey("job.id", ondelete="CASCADE"), primary_key=True),
    Column("body", StrictJson(json_object), nullable=False),
)

# Every lease of a phone, of jobs and of TVM clients.
lease = Table(
    "lease",
    metadata,
    Column("id", Word, primary_key=True),
    Column("device", Word, nullable=False),
    Column("user", Word, nullable=False),
    Column("source", EnumText(LeaseSource), nullable=False),
    Column("job", Word, nullable=False),  # its id; '' through the TVM server
    Column("lease_class", EnumText(LeaseClass), nullable=False),
    Column("selector", ForeignKey("selector.id"), nullable=False),
    Column("key", Word, nullable=False),  # the stock TVM key asked for
    Column("fence", BigInteger, nullable=False, unique=True),
    Column("granted_at", UtcTime, nullable=False),
    Column("expires_at", UtcTime),
    Column("ended_at", UtcTime),
    Column("reason", Word, nullable=False),
    Column("held_s", Double, nullable=False),
    Column("cleaned_s", Double, nullable=False),  # after it: cleaning and checking, which its user is charged for
    Column("host", Word, nullable=False, server_default=""),  # which holds its device; "": the only one of the database
    Column("armed_at", UtcTime),  # its host took it; NULL: it has not, and the lease was never held
    Column("slot", Flag, nullable=False, server_default="0"),  # the worker slot that came with it outlasts it
    # The host where it was asked for, if that is another one; "": it is the same, or the head asked for a job.
    Column("holder_host", Word, nullable=False, server_default=""),
    # SHA-256 of the match key that a TVM client of holder_host has; "": none.
    Column("match_sha256", Word, nullable=False, server_default=""),
    _one_of("source", LeaseSource, "lease_source"),
    _one_of("lease_class", LeaseClass, "lease_class"),
    CheckConstraint("slot IN (0, 1)", name="lease_slot"),
)
Index("lease_open_device", lease.c.device, unique=True, **_where("ended_at IS NULL"))
Index("lease_ended", lease.c.ended_at)
Index("lease_slot_kept", lease.c.fence, **_where("slot = 1"))

attempt = Table(
    "attempt",
    metadata,
    Column("id", Word, primary_key=True),  # JOB.NUMBER
    Column("job", ForeignKey("job.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("device", Word, nullable=False),
    Column("lease", ForeignKey("lease.id"), nullable=False, index=True),
    Column("fence", BigInteger, nullable=False, unique=True),
    Column("state", EnumText(AttemptState), nullable=False),
    Column("started_at", UtcTime, nullable=False),
    Column("ended_at", UtcTime),
    Column("error", StrictJson(json_object)),
    Column("facts", StrictJson(json_object), nullable=False),
    Column("pooled", Flag, nullable=False),  # it lives as long as its worker; its phones change
    UniqueConstraint("job", "number", name="attempt_number_once"),
    CheckConstraint("number >= 1", name="attempt_from_one"),
    CheckConstraint("pooled IN (0, 1)", name="attempt_pooled"),
    _one_of("state", AttemptState, "attempt_state"),
    CheckConstraint("(state = 'running') = (ended_at IS NULL)", name="attempt_ended_when_over"),
)
# A pooled attempt may have given its first phone, which its row names, to others: there the open lease is the guard.
Index("attempt_running_device", attempt.c.device, unique=True, **_where("ended_at IS NULL AND pooled = 0"))
Index("attempt_running_job", attempt.c.job, unique=True, **_where("ended_at IS NULL"))


def _changed() -> Column[int]:
    """Of a row that the head reads once it is written: by which transaction it was (farm.store.event_numbers)."""
    return Column("changed", BigInteger, nullable=False, server_default="1")


def has_no_end(table: Table) -> TextClause:
    """The condition of a row that is chosen by its key: `ended_at IS NULL`, in a form that no partial index knows.

    PostgreSQL goes through such an index of all open rows as long as it has not analyzed the table.
    """
    return sql(f"{table.name}.ended_at + 0 IS NULL")


event = Table(
    "event",
    metadata,
    Column("seq", serial_number(), primary_key=True, autoincrement=False),
    Column("at", UtcTime, nullable=False),
    Column("kind", Word, nullable=False),
    Column("subject", Word, nullable=False),
    Column("data", LooseJson(json_object), nullable=False),
)
Index("event_of_subject", event.c.subject, event.c.seq)

# The devices of a selector, kept for one user during a window.
reservation = Table(
    "reservation",
    metadata,
    Column("id", Word, primary_key=True),
    Column("selector", ForeignKey("selector.id"), nullable=False),
    Column("user", Word, nullable=False),
    Column("starts_at", UtcTime, nullable=False),
    Column("ends_at", UtcTime, nullable=False),
    Column("note", Word, nullable=False),
    CheckConstraint("ends_at > starts_at", name="reservation_lasts"),
)

# Toolchains added while the daemon runs; those of the configuration have no row.
toolchain = Table(
    "toolchain",
    metadata,
    Column("name", Word, primary_key=True),
    Column("python", Word, nullable=False),
    Column("bundle", Word, nullable=False),
    Column("tvm_version", Word, nullable=False),
)

# Tuning records that a run has kept: one version per end of an attempt that found better ones.
record_set = Table(
    "record_set",
    metadata,
    Column("id", serial_number(), primary_key=True),
    Column("model", Word, nullable=False),  # ImportedModel.key
    Column("name", Word, nullable=False),  # the model's name for people
    Column("target_key", Word, nullable=False),  # of the canonical target
    Column("target", StrictJson, nullable=False),  # a TVM tag or target dict
    Column("version", Integer, nullable=False),  # from 1
    Column("artifact", Word, nullable=False),  # SHA-256 of the records
    Column("records", Integer, nullable=False),  # how many
    Column("best", StrictJson, nullable=False),
    Column("user", Word, nullable=False),  # its owner; "": unknown
    Column("job", Word, nullable=False),  # its id; it may be forgotten before its records
    Column("at", UtcTime, nullable=False),
    UniqueConstraint("model", "target_key", "version", name="record_set_version_once"),
    CheckConstraint("version >= 1", name="record_set_from_one"),
    CheckConstraint("records >= 0", name="record_set_counts"),
)
Index("record_set_of_name", record_set.c.name)

# Of a lab of several hosts: which host has which artifact in its folder (farm.store.artifact_copies).
artifact_copy = Table(
    "artifact_copy",
    metadata,
    Column("sha256", Word, primary_key=True),
    Column("host", Word, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("at", UtcTime, nullable=False),  # when the host got it
)
Index("artifact_copy_of_host", artifact_copy.c.host)

# Of a lab of several hosts: bundles by the names that one host gave them, for every host with phones of their ABI.
shared_bundle = Table(
    "shared_bundle",
    metadata,
    Column("name", Word, primary_key=True),
    Column("bundle", Word, nullable=False),  # its hash
    Column("abi", Word, nullable=False),
    Column("platform", Word, nullable=False),
    Column("artifact", Word, nullable=False),  # SHA-256 of the bundle as one file
    Column("host", Word, nullable=False),  # where it was added
    Column("at", UtcTime, nullable=False),
)

# Artifacts whose run killed its worker, server or phone: a row for each user who ran it, about the latest time.
poison = Table(
    "poison",
    metadata,
    Column("artifact", Word, primary_key=True),  # SHA-256 of the library
    Column("user", Word, primary_key=True),  # who ran it
    Column("what", Word, nullable=False),  # what happened, one line
    Column("device", Word, nullable=False),
    Column("kills", Integer, nullable=False),
    Column("seen", Integer, nullable=False),  # of these, reported by an operator
    Column("first_at", UtcTime, nullable=False),
    Column("last_at", UtcTime, nullable=False),
    Column("job", Word, nullable=False),
    CheckConstraint("kills >= 1", name="poison_has_killed"),
    CheckConstraint("seen BETWEEN 0 AND kills", name="poison_seen_is_of_kills"),
)
Index("poison_last", poison.c.last_at)

# Recovery actions that were taken. They also spend each phone's daily budgets: a restart of the daemon refunds none.
recovery = Table(
    "recovery",
    metadata,
    _host(),
    Column("id", Word, primary_key=True),
    Column("serial", Word, nullable=False),
    Column("device", Word, nullable=False),  # its name
    Column("action", Word, nullable=False),
    Column("fault", Word, nullable=False),
    Column("cause", Word, nullable=False),  # one sentence
    Column("began_at", UtcTime, nullable=False),
    Column("took_s", Double),
    Column("outcome", Word),  # repaired | failed | cut
    Column("detail", Word, nullable=False, server_default=""),
    CheckConstraint("(took_s IS NULL) = (outcome IS NULL)", name="recovery_ended_whole"),
)
Index("recovery_of_serial", recovery.c.host, recovery.c.serial, recovery.c.began_at)
Index("recovery_began", recovery.c.began_at)

# Phones that are withheld from users until a person, or the rule, releases them.
quarantine = Table(
    "quarantine",
    metadata,
    _host(),
    Column("serial", Word, primary_key=True),
    Column("reason", Word, nullable=False),  # Quarantine.cause
    Column("hint", Word, nullable=False),
    Column("fault", Word, nullable=False),
    Column("rule", Word, nullable=False),
    Column("evidence", Word, nullable=False),
    Column("at", UtcTime, nullable=False),
    _one_of("rule", ("person", "bundles", "well"), "quarantine_rule"),
)

# The bundle (its hash) that last passed its check on each phone: one that never did is suspected before the phone.
proven = Table(
    "proven",
    metadata,
    _host(),
    Column("serial", Word, primary_key=True),
    Column("bundle", Word, nullable=False),
)

# Where the rolling upgrade of runtime bundles stands on a host, for each ABI and platform
# (farm.bundle.rollout_rules.Rollout).
rollout = Table(
    "rollout",
    metadata,
    _host(),
    Column("abi", Word, primary_key=True),
    Column("platform", Word, primary_key=True),
    Column("current", Word, nullable=False),  # hashes of bundles; "": none
    Column("previous", Word, nullable=False),
    Column("candidate", Word, nullable=False),
    Column("wanted", Word, nullable=False),
    Column("refused", StrictJson(json_object), nullable=False),  # object: bundle -> reason
    Column("trials", StrictJson(json_object), nullable=False),  # object: serial -> farm.bundle.rollout_rules.Trial
    CheckConstraint("candidate = '' OR candidate <> current", name="rollout_candidate_is_new"),
)

# Each phone's battery, a row per day (BatteryDay).
battery_day = Table(
    "battery_day",
    metadata,
    _host(),
    Column("serial", Word, primary_key=True),
    Column("day", Word, primary_key=True),  # 2026-11-22, UTC
    Column("percent_min", Integer),
    Column("percent_max", Integer),
    Column("celsius_max", Double),
    Column("cycles", Integer),
    Column("full_uah", Integer),
    Column("design_uah", Integer),
    Column("health", Word, nullable=False),
)

# What each finished bench measured, found by its model, and the reference kernel's time by its phone. It outlives its
# job, which is pruned much sooner: the row has all that a history shows.
measurement = Table(
    "measurement",
    metadata,
    Column("seq", serial_number(), primary_key=True),  # order of the results
    Column("job", Word, nullable=False, unique=True),  # its id; it may be forgotten
    Column("model", Word, nullable=False),  # SHA-256 of its file
    Column("name", Word, nullable=False),  # what people call it
    Column("device", Word, nullable=False),
    Column("epoch", Word, nullable=False),  # the phone's build fingerprint: an update begins a new one
    Column("kernel", Word, nullable=False),  # key of the reference kernel; '' when there was none
    Column("reference_s", Double),  # its median time in that bench, seconds; NULL when the bench was rejected
    Column("nominal_s", Double),  # of the kernel, which the estimate in `summary` was given at; NULL without a kernel
    Column("at", UtcTime, nullable=False),
    # what a history shows; a result can be a thousand times larger
    Column("summary", StrictJson(json_object), nullable=False),
)
Index("measurement_of_model", measurement.c.model, measurement.c.seq)
Index("measurement_of_name", measurement.c.name, measurement.c.seq)
Index(
    "measurement_of_reference",
    measurement.c.device, measurement.c.epoch, measurement.c.kernel, measurement.c.seq,
)  # fmt: skip

# A phone's nominal speed: written once, when enough users' benches agreed, and never changed.
nominal = Table(
    "nominal",
    metadata,
    Column("device", Word, primary_key=True),
    Column("epoch", Word, primary_key=True),
    Column("kernel", Word, primary_key=True),
    Column("reference_s", Double, nullable=False),
    Column("at", UtcTime, nullable=False),
)

# Users from other hosts (CURVE keys) or of the web page (tokens). It holds no secrets: of a key the public half, of a
# token the hash. A revoked account keeps its row, without either.
account = Table(
    "account",
    metadata,
    Column("name", Word, primary_key=True),
    Column("role", Word, nullable=False),
    Column("curve_key", Word, unique=True),  # public, Z85
    Column("token_sha256", Word, unique=True),
    Column("made_at", UtcTime, nullable=False),
    Column("made_by", Word, nullable=False),
    Column("used_at", UtcTime),
    Column("revoked_at", UtcTime),
    _one_of("role", ("viewer", "user", "operator"), "account_role"),
    CheckConstraint(
        "revoked_at IS NULL OR (curve_key IS NULL AND token_sha256 IS NULL)", name="account_revoked_has_no_secret"
    ),
)

# The audit log: a row per call that changes something or was refused, never its arguments.
audit = Table(
    "audit",
    metadata,
    Column("seq", serial_number(), primary_key=True),
    Column("at", UtcTime, nullable=False),
    Column("user", Word, nullable=False),
    Column("role", Word, nullable=False),
    Column("origin", Word, nullable=False),
    Column("kind", Word, nullable=False),
    Column("subject", Word, nullable=False),
    Column("outcome", Word, nullable=False),  # ok, or the code of an error
)
Index("audit_of_user", audit.c.user, audit.c.seq)
Index("audit_of_kind", audit.c.kind, audit.c.seq)
Index("audit_at", audit.c.at)

# Between hosts and a head apart from them, on a server only (farm.store.mailbox). What hosts have: each phone as its
# head knows it, themselves, and each request for a phone that has no lease.
device_state = Table(
    "device_state",
    metadata,
    _host(),
    Column("name", Word, primary_key=True),
    Column("body", ObjectJson(), nullable=False),  # of the latest message about it
    _changed(),
)
Index("device_state_changed", device_state.c.changed)

host = Table(
    "host",
    metadata,
    Column("name", Word, primary_key=True),
    Column("beat_at", UtcTime),  # by the server's clock; NULL: it was stopped, or never started
    Column("protocol", Integer, nullable=False),  # of its messages (farm.head.wire)
    Column("drained", Word, nullable=False, server_default=""),  # why its phones are not handed out; "": they are
    Column("address", Word, nullable=False, server_default=""),  # HOST:PORT where other hosts dial it; "": nowhere
    Column("certificate", Word, nullable=False, server_default=""),  # PEM, of its connections with other hosts
    # object: client's CIDR -> HOST:PORT of its TVM port, for clients of other hosts' ports that may come to it directly
    Column("advertise", ObjectJson(), nullable=False, server_default="{}"),
    Column("version", Word, nullable=False, server_default=""),  # of farm there
    Column("role", Word, nullable=False, server_default=""),  # with which it logs in; "": not one of its own
    Column("removed_at", UtcTime),  # NULL: it belongs to the lab; else the head ends its leases, then its row
)

# The latest readings of each host's phones, for people at other hosts; decisions know no readings.
host_readings = Table(
    "host_readings",
    metadata,
    Column("host", Word, primary_key=True),
    Column("body", ObjectJson(), nullable=False),  # object: phone's name -> farm.leasing.lab_readings.ShownReadings
)

# Tokens with which a machine may join, each with a role of the server whose password is good until it expires.
host_token = Table(
    "host_token",
    metadata,
    Column("name", Word, primary_key=True),  # of the host that it will be
    Column("role", Word, nullable=False),
    Column("expires_at", UtcTime, nullable=False),
    Column("made_by", Word, nullable=False),
)

# Machines that build tuning candidates, and tokens with which one may join. Every host lets them in.
builder = Table(
    "builder",
    metadata,
    Column("name", Word, primary_key=True),
    Column("certificate", Word, nullable=False),  # PEM, of its connections; before it joins, that of its token
    Column("made_by", Word, nullable=False),  # user who made the token
    Column("expires_at", UtcTime),  # of the token; NULL: the builder has joined
    Column("built", Integer, nullable=False, server_default="0"),  # candidates
    Column("seen_at", UtcTime),  # NULL: it was never connected
    Column("versions", ObjectJson(), nullable=False, server_default="{}"),  # of tvm, ffi and farm there
)

request = Table(
    "request",
    metadata,
    Column("seq", serial_number(), primary_key=True),  # order of arrival
    Column("id", Word, nullable=False, unique=True),
    Column("host", Word, nullable=False),
    Column("body", ObjectJson(), nullable=False),  # of the message that added it
    _changed(),
)
Index("request_changed", request.c.changed)

# Letters that were not taken yet, in order per host.
to_head = Table(
    "to_head",
    metadata,
    Column("id", serial_number(), primary_key=True),
    Column("host", Word, nullable=False),
    Column("body", ObjectJson(), nullable=False),
    _changed(),
)

to_host = Table(
    "to_host",
    metadata,
    Column("id", serial_number(), primary_key=True),
    Column("host", Word, nullable=False, index=True),
    Column("body", ObjectJson(), nullable=False),
)

for _table in metadata.tables.values():
    for _column in _table.columns:
        if isinstance(_column.type, CheckedType):
            _column.type.column = _column
