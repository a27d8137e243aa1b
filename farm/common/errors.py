"""The one family of errors, and their JSON form between processes.

Each leaf says whose fault it is, because retry policy follows the fault (never the message text):
phone -> another phone, at once; user -> never; host or farm -> back off and try again.
`str(error)` is one sentence for a person; `hint` says what to do next; `evidence` is the text of the peer.

`error_to_wire` keeps fault, code and exit code. A receiver that does not know the sender's class gets one of the same
fault, code and exit code, so `except PhoneError` works on both sides. An error that nothing catches by class
has no class: it is raised as its base with a `Code`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import ClassVar, Self


class Fault(StrEnum):
    """The party at fault for an error."""

    USER = "user"
    PHONE = "phone"
    HOST = "host"
    FARM = "farm"


class ExitCode:
    """Exit codes of every `farm` command (docs/reference-cli.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_PHONE = 3
    NO_DAEMON = 4
    NOT_ALLOWED = 5
    NO_ANSWER = 125  # of `farm ci`; git bisect run passes over such a commit
    INTERRUPTED = 130  # as shells have it for Ctrl-C


class Code(StrEnum):
    """Codes of errors that nothing catches by class: the code, whose fault it is, its meaning, and an exit code.

    A code says what is wrong (bad_X, no_such_X, X_failed, X_unusable ...), and never is the name of a thing alone. A
    class of errors that is caught declares its code itself; docs/protocol.md lists both.
    """

    fault: Fault
    meaning: str
    exit_code: int | None  # None: as for the fault

    def __new__(cls, code: str, fault: Fault, meaning: str, exit_code: int | None = None) -> Self:
        """One row of the table."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.fault, member.meaning, member.exit_code = fault, meaning, exit_code
        return member

    AFTER_FAILED = "after_failed", Fault.USER, "A job that this one waits for did not succeed.", ExitCode.FAILED
    ARTIFACT_AWAY = "artifact_away", Fault.HOST, "No host that has the artifact gives it."
    ARTIFACT_NOT_STORED = "artifact_not_stored", Fault.HOST, "The artifact folder cannot be written."
    BAD_ARTIFACT = "bad_artifact", Fault.USER, "The artifact request is wrong."
    BAD_BUNDLE = "bad_bundle", Fault.USER, "The folder cannot be a bundle."
    BAD_CHECKOUT = "bad_checkout", Fault.USER, "The folder is not the whole source of the toolchain's TVM."
    BAD_CLML_SDK = "bad_clml_sdk", Fault.USER, "The folder is no OpenCL ML SDK, or not for that ABI."
    BAD_CONFIG = "bad_config", Fault.USER, "The configuration has a mistake."
    BAD_HOST_VERSION = "bad_host_version", Fault.HOST, "Two hosts of a lab have releases that do not fit together."
    BAD_INPUTS = "bad_inputs", Fault.USER, "The inputs do not fit the model."
    BAD_LABELS = "bad_labels", Fault.USER, "The labels do not fit the model's outputs."
    BAD_NDK = "bad_ndk", Fault.USER, "The folder is no NDK that can build TVM for that ABI."
    BAD_PACKAGE = "bad_package", Fault.USER, "The file is no package, or is damaged."
    BAD_PRECISION = "bad_precision", Fault.USER, "There is no such precision."
    BAD_PROGRAM = "bad_program", Fault.USER, "The program's description or its files are wrong, or not for the phone."
    BAD_QUEUE_EVENT = "bad_queue_event", Fault.FARM, "The job queue got an event that does not fit the job's phase."
    BAD_SELECTOR = "bad_selector", Fault.USER, "The selector does not follow the grammar."
    BAD_SHAPE = "bad_shape", Fault.USER, "The shapes or types cannot be read, or do not fit the model."
    BAD_SPEC = "bad_spec", Fault.USER, "The job's description is wrong."
    BAD_SPEC_FILE = "bad_spec_file", Fault.USER, "The spec file has a mistake."
    BAD_TOOLCHAIN_NAME = "bad_toolchain_name", Fault.USER, "The name is taken, or cannot be one."
    BUILD_FAILED = "build_failed", Fault.HOST, "The runtime of phones could not be built."
    BUNDLES_NOT_COMPARABLE = "bundles_not_comparable", Fault.USER, "These two bundles cannot be compared on that phone."
    BUNDLE_DAMAGED = "bundle_damaged", Fault.HOST, "Files of a bundle are not what they were when it was added."
    BUNDLE_IN_USE = "bundle_in_use", Fault.USER, "The bundle is on a phone or in a job."
    BUNDLE_MISMATCH = "bundle_mismatch", Fault.USER, "The library that is compiled here does not run under a bundle."
    BUNDLE_NAME_TAKEN = "bundle_name_taken", Fault.USER, "Another bundle has that name."
    BUNDLE_NOT_TAKEN = "bundle_not_taken", Fault.PHONE, "The phone does not run with the bundle that was wanted."
    CHECK_TIMEOUT = "check_timeout", Fault.PHONE, "The golden kernels did not end in time on the phone."
    COMMAND_FAILED = "command_failed", Fault.USER, "The command's exit code is not 0.", ExitCode.FAILED
    COMPILE_FAILED = "compile_failed", Fault.USER, "TVM cannot compile the model for that target."
    DAEMON_DIED = "daemon_died", Fault.HOST, "The farm daemon died while the attempt ran."
    DAEMON_STOPPED = "daemon_stopped", Fault.HOST, "The farm daemon was stopped while the attempt ran."
    DATABASE_UNUSABLE = "database_unusable", Fault.HOST, "The database cannot be used."
    DEADLINE_MISSED = "deadline_missed", Fault.USER, "The job did not end before its deadline.", ExitCode.FAILED
    DEVICE_HELD = "device_held", Fault.USER, "Another user holds the device, or one that the order would disturb."
    DISPUTED_NUMBERS = "disputed_numbers", Fault.USER, "TVM and the reference differ; nothing here tells who is right."
    DRIVER_MISSING = (
        "driver_missing", Fault.USER, "The phone has no such device, or its driver does not load.", ExitCode.FAILED,
    )  # fmt: skip
    FORM_EXPIRED = "form_expired", Fault.USER, "This form is not from your present sign-in."
    GATE_GONE = "gate_gone", Fault.HOST, "The gate was away, without which no session with a phone begins or continues."
    GAUGE_FAILED = "gauge_failed", Fault.PHONE, "The phone's gauge or power rails fell silent, or are not understood."
    HEAD_AWAY = "head_away", Fault.HOST, "No head of the lab answers."
    HOST_IMPAIRED = "host_impaired", Fault.HOST, "The host lacks room, memory or files for workers."
    HOST_LINK_LOST = "host_link_lost", Fault.HOST, "The host's adb server or hub failed, and its phones went with it."
    HOST_LOST = "host_lost", Fault.HOST, "The lab's head has not heard of the host that ran the attempt."
    HOST_OUT_OF_MEMORY = "host_out_of_memory", Fault.USER, "This host has too little memory.", ExitCode.FAILED
    HOST_RUN_FAILED = "host_run_failed", Fault.USER, "The model failed on this host."
    ILLEGAL_TRANSITION = "illegal_transition", Fault.FARM, "The table of transitions has no such step."
    INSTALL_FAILED = "install_failed", Fault.PHONE, "The bundle's folder could not be put in place."
    INTERRUPTED_TOO_OFTEN = "interrupted_too_often", Fault.FARM, "The daemon died under this job too often."
    JOB_CANCELLED = "job_cancelled", Fault.USER, "The job was cancelled.", ExitCode.FAILED
    KERNEL_REFUSED = (
        "kernel_refused", Fault.USER, "The phone's GPU cannot run a kernel, or its driver cannot build it.",
        ExitCode.FAILED,
    )  # fmt: skip
    LEASE_ENDED = "lease_ended", Fault.USER, "A lease was taken away from its holder.", ExitCode.FAILED
    LINK_FAILED = "link_failed", Fault.HOST, "The linker refused the object files."
    LOG_AWAY = "log_away", Fault.HOST, "The host that has the log does not answer, or sends none that can be read."
    MISCOMPILED = "miscompiled", Fault.USER, "TVM itself compiles a model wrongly: another phone computes the same."
    NAME_TAKEN = "name_taken", Fault.HOST, "Another daemon has begun under this one's name."
    NOTHING_TO_TUNE = "nothing_to_tune", Fault.USER, "The model has no operator whose schedule could be tuned."
    NOT_A_FILE = "not_a_file", Fault.USER, "The path is not a regular file."
    NOT_CHECKING = "not_checking", Fault.PHONE, "The device is not being checked."
    NOT_ELF = "not_elf", Fault.USER, "The file is not an ELF file at all."
    NOT_ENDED = "not_ended", Fault.USER, "The job has not ended yet."
    NOT_IN_POOL = "not_in_pool", Fault.PHONE, "The lease is not in the attempt's pool: ask for the pool again."
    NOT_OFFLOADED = "not_offloaded", Fault.USER, "The accelerator that was asked for did no work.", ExitCode.FAILED
    NOT_POISONED = "not_poisoned", Fault.USER, "The artifact is not poisoned."
    NOT_RESTORED = "not_restored", Fault.PHONE, "Values that were changed to measure could not be changed back."
    NOT_TUNABLE = "not_tunable", Fault.USER, "Nothing can be tuned for that target."
    NO_BUILD_TOOL = "no_build_tool", Fault.HOST, "The host lacks a program that builds TVM, or has an old one."
    NO_CANDIDATE_RAN = "no_candidate_ran", Fault.USER, "No candidate ran.", ExitCode.FAILED
    NO_COMPILER = "no_compiler", Fault.HOST, "The host has no C++ compiler for that ABI."
    NO_DATABASE = "no_database", Fault.USER, "There is no database yet."
    NO_IDENTITY = "no_identity", Fault.PHONE, "The phone answered without any property."
    NO_LAB = "no_lab", Fault.HOST, "The lab process does not answer."
    NO_LINKER = "no_linker", Fault.HOST, "The host has no linker for that ABI."
    NO_PHONES_LEFT = "no_phones_left", Fault.HOST, "No phone is left, and none will come."
    NO_ROOM = "no_room", Fault.HOST, "The host's disk has no room for what comes from a phone."
    NO_SERVER = "no_server", Fault.PHONE, "The device has no running RPC server."
    NO_SUCH_ACCOUNT = "no_such_account", Fault.USER, "There is no account of that name."
    NO_SUCH_ARTIFACT = "no_such_artifact", Fault.USER, "There is no such artifact."
    NO_SUCH_CORES = "no_such_cores", Fault.USER, "The phone has no such cores, or too few for so many threads."
    NO_SUCH_FILE = "no_such_file", Fault.USER, "The job has no such file."
    NO_SUCH_KIND = "no_such_kind", Fault.USER, "The daemon does not know this request or kind of job."
    NO_SUCH_RECORDS = "no_such_records", Fault.USER, "There is no such set of records."
    NO_SUCH_RESERVATION = "no_such_reservation", Fault.USER, "There is no such reservation."
    NO_SUCH_TARGET = "no_such_target", Fault.USER, "There is no such target."
    NO_SUCH_TOOLCHAIN = "no_such_toolchain", Fault.USER, "There is no toolchain of that name."
    NO_TVM = "no_tvm", Fault.HOST, "There is no TVM here."
    OUT_OF_MEMORY = "out_of_memory", Fault.PHONE, "The phone is out of memory."
    PACKAGE_FOREIGN = "package_foreign", Fault.USER, "The package is for another CPU or platform."
    PACKAGE_MISMATCH = "package_mismatch", Fault.USER, "The package is of another version of the format, or of TVM."
    PACKAGE_UNFIT = "package_unfit", Fault.USER, "The package is for another device, or was made with other options."
    PHONE_CLOCK_WRONG = "phone_clock_wrong", Fault.PHONE, "The phone's clock gave an impossible time."
    PHONE_FORGOTTEN = "phone_forgotten", Fault.PHONE, "The job's phone is no part of the farm any more."
    PLACEMENT_REFUSED = (
        "placement_refused", Fault.USER, "The phone does not let the session have those cores, or that group.",
        ExitCode.FAILED,
    )  # fmt: skip
    POISONED = "poisoned", Fault.USER, "The library has killed what ran it before."
    PORT_CLOSED = "port_closed", Fault.PHONE, "Nothing listens on that port of the phone."
    PORT_TAKEN = "port_taken", Fault.HOST, "The port is taken."
    POWER_METER_FAILED = "power_meter_failed", Fault.HOST, "The power meter stopped, or prints no power."
    POWER_NOT_MEASURABLE = (
        "power_not_measurable", Fault.USER, "No meter and no gauge sees all of the phone's power.", ExitCode.FAILED
    )  # fmt: skip
    PROGRAM_FAILED = "program_failed", Fault.USER, "The program ended with an error or a signal.", ExitCode.FAILED
    PROGRAM_HUNG = "program_hung", Fault.USER, "The program did not end in time.", ExitCode.FAILED
    PROGRAM_UNREADABLE = "program_unreadable", Fault.USER, "No times can be read from the output.", ExitCode.FAILED
    PROGRAM_WRONG = "program_wrong", Fault.USER, "The program's numbers are not those expected.", ExitCode.FAILED
    PUSH_MISMATCH = "push_mismatch", Fault.PHONE, "A pushed file's content on the phone is not what was sent."
    QUOTA_EXCEEDED = "quota_exceeded", Fault.USER, "The user has as many jobs as they may.", ExitCode.NOT_ALLOWED
    REBOOT_REFUSED = "reboot_refused", Fault.PHONE, "The phone was asked to reboot and did not go down."
    RECORDS_BUSY = "records_busy", Fault.HOST, "Another process writes these records."
    RESULT_NOT_KEPT = "result_not_kept", Fault.FARM, "The attempt's result cannot be kept."
    RESULT_TOO_LARGE = "result_too_large", Fault.USER, "The result is larger than the farm keeps.", ExitCode.FAILED
    RUNTIME_FOLDER_UNUSABLE = "runtime_folder_unusable", Fault.HOST, "The runtime folder cannot be used."
    SCRIPT_FAILED = "script_failed", Fault.PHONE, "A device script gave an answer that farm does not know."
    SERVER_NOT_STARTED = "server_not_started", Fault.PHONE, "The RPC server did not start."
    SERVER_REFUSED = "server_refused", Fault.PHONE, "The phone's RPC server refused the farm's key."
    SERVER_SILENT = "server_silent", Fault.PHONE, "The phone's RPC server takes connections and answers nothing."
    SESSION_FAILED = "session_failed", Fault.PHONE, "The phone failed in a session."
    SESSION_STUCK = "session_stuck", Fault.FARM, "A session that was cut has not reported its end."
    SECRET_IN_ARGUMENT = "secret_in_argument", Fault.USER, "A token or password was given as an argument."
    SIGN_IN_NEEDED = "sign_in_needed", Fault.USER, "This needs a signed-in user.", ExitCode.NOT_ALLOWED
    STALE_REPORT = "stale_report", Fault.FARM, "A worker reported for an attempt that is not (or no longer) its own."
    STATE_FOLDER_IN_USE = "state_folder_in_use", Fault.HOST, "Another daemon uses this state folder."
    STOPPING = "stopping", Fault.HOST, "The farm daemon is stopping."
    STORE_CONFLICT = "store_conflict", Fault.FARM, "The database refused a write that would break one of its rules."
    STORE_READ_FAILED = "store_read_failed", Fault.HOST, "The database could not be read."
    STORE_UNWRITABLE = "store_unwritable", Fault.HOST, "The farm cannot keep new jobs now."
    TOOLCHAIN_IN_USE = "toolchain_in_use", Fault.USER, "Attempts, jobs or bundles need the toolchain."
    TOOLCHAIN_REFUSED = "toolchain_refused", Fault.USER, "The interpreter cannot be a toolchain."
    TOO_HOT = "too_hot", Fault.PHONE, "A lease ended because its phone was dangerously hot."
    TOO_LARGE = "too_large", Fault.USER, "The file on the phone is larger than a pull may bring."
    TVM_CRASHED = "tvm_crashed", Fault.USER, "TVM crashed."
    UNTETHERED_FAILED = "untethered_failed", Fault.PHONE, "A run without a cable did not go as planned."
    VERSIONS_UNFIT = (
        "versions_unfit", Fault.USER, "Two versions of TVM and its FFI meet that are known not to work together."
    )  # fmt: skip
    WORKER_BUG = "worker_bug", Fault.FARM, "A worker failed in a way farm did not foresee."
    WORKER_DIED = "worker_died", Fault.HOST, "A worker ended without a result."
    WORKER_SILENT = "worker_silent", Fault.HOST, "A worker stopped sending heartbeats and was killed."
    WRONG_NUMBERS = "wrong_numbers", Fault.PHONE, "A phone computed wrong numbers."
    WRONG_PRECISION = "wrong_precision", Fault.USER, "The precision is too coarse: this host computes the same in it."


# Causes that only the host's operator can remove, by code: no worker runs there, or none of such a job. Others see
# these words and not the worker's, because workers run users' programs.
HOST_STANDS = {
    Code.HOST_IMPAIRED.value: Code.HOST_IMPAIRED.meaning,
    Code.GATE_GONE.value: Code.GATE_GONE.meaning,
    "toolchain_failed": "A toolchain of the host does not start.",
}
JOB_LACKS = {each.value: each.meaning for each in (Code.NO_COMPILER, Code.NO_LINKER, Code.NO_TVM)}


class FarmError(Exception):
    """Something went wrong inside farm."""

    fault: ClassVar[Fault] = Fault.FARM
    code: str = "internal"
    exit_code: int = ExitCode.FAILED

    def __init__(self, message: str = "", code: Code | None = None, *, hint: str = "", evidence: str = "") -> None:
        default = code.meaning if code else (type(self).__doc__ or "").strip().splitlines()[0]
        super().__init__(message or default)
        if code:
            self.code, self.exit_code = code.value, code.exit_code or self.exit_code
        self.hint = hint
        self.evidence = evidence

    @property
    def message(self) -> str:
        """The one-sentence message."""
        return str(self.args[0])


class UserError(FarmError):
    """The request itself is wrong; trying again will not help."""

    fault = Fault.USER
    code = "bad_request"
    exit_code = ExitCode.USAGE


class NotAllowedError(UserError):
    """This user may not do that."""

    code = "not_allowed"
    exit_code = ExitCode.NOT_ALLOWED


class NoSuchDeviceError(UserError):
    """There is no device of that name."""

    code = "no_such_device"


class NoPhoneError(UserError):
    """No phone matches, or none is available now."""

    code = "no_phone"
    exit_code = ExitCode.NO_PHONE


class ModelError(UserError):
    """The model cannot be loaded, compiled or fed."""

    code = "bad_model"


class PhoneError(FarmError):
    """A phone failed."""

    fault = Fault.PHONE
    code = "phone"


class HostError(FarmError):
    """The lab host is missing something or refused something."""

    fault = Fault.HOST
    code = "host"


stopping_error = partial(HostError, code=Code.STOPPING)


class HostUnreachableError(HostError):
    """Another host of the lab cannot be reached."""

    code = "host_unreachable"


class DaemonUnreachableError(HostError):
    """The farm daemon does not answer."""

    code = "no_daemon"
    exit_code = ExitCode.NO_DAEMON


class ProtocolError(FarmError):
    """A peer sent bytes that the protocol does not allow."""

    code = "protocol"


def log_error(
    log: logging.Logger, error: BaseException, text: str, *values: object, level: int = logging.ERROR
) -> None:
    """Log what failed, and why: a FarmError says all in one line, a bug comes with its trace."""
    log.log(level, "%s: %s", text % values, error, exc_info=None if isinstance(error, FarmError) else error)


class MissingFieldError(ProtocolError):
    """An answer lacks a field that this farm reads."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the daemon's answer has no field {name!r}", hint="it is an older farm: upgrade it on its host, restart it"
        )


MAX_CODE_CHARS = 64  # an attempt's error is in every list of jobs and in every reader's events
MAX_TEXT_CHARS = 4096  # per field; evidence can be a whole log, a person reads a screenful
_BY_FAULT = {str(each.fault): each for each in (UserError, PhoneError, HostError, FarmError)}


def error_to_wire(error: BaseException) -> dict[str, object]:
    """An error as JSON-able fields; anything that is no FarmError is a farm bug and says only its class and text."""
    if not isinstance(error, FarmError):
        error = FarmError(
            f"{type(error).__name__}: {error}", hint="this is a bug in farm; the daemon's log has the trace"
        )
    return {
        "code": error.code,
        "fault": str(error.fault),
        "exit": error.exit_code,
        "message": error.message[:MAX_TEXT_CHARS],
        "hint": error.hint[:MAX_TEXT_CHARS],
        "evidence": error.evidence[-MAX_TEXT_CHARS:],  # the end of a log is worth more than its start
    }


def error_from_wire(described: object) -> FarmError:
    """The error that `error_to_wire` described. Never raises: anything else becomes an error that quotes it."""
    fields = described if isinstance(described, Mapping) else {}
    fault, code, exit_code = fields.get("fault"), fields.get("code"), fields.get("exit")
    base = _BY_FAULT.get(fault) if isinstance(fault, str) else None
    if base is None or not isinstance(code, str) or len(code) > MAX_CODE_CHARS:
        return FarmError("the peer reported an error in a form this version does not know", evidence=str(described))
    if not isinstance(exit_code, int) or isinstance(exit_code, bool) or not 0 < exit_code < 256:
        exit_code = base.exit_code
    known = next((each for each in _family(base) if each.code == code and each.__init__ is FarmError.__init__), base)
    error = known(_text(fields, "message"), hint=_text(fields, "hint"), evidence=_text(fields, "evidence"))
    error.code, error.exit_code = code, exit_code
    return error


def _family(base: type[FarmError]) -> Iterator[type[FarmError]]:
    yield base
    for child in base.__subclasses__():
        yield from _family(child)


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name, "")
    return value if isinstance(value, str) else str(value)
