"""`farm install-service`: the units of systemd that run the farm, for this very interpreter.

Pure functions decide the text of each file and what there is to do: `files`, `install_steps`, `uninstall_steps`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import typer

from farm import __version__
from farm.cli.connection import JsonFlag, call
from farm.cli.output import emit, print_line, print_note
from farm.common.errors import FarmError, HostError, NotAllowedError, UserError
from farm.common.install import pip_install

Commands = tuple[tuple[str, ...], ...]

SYSTEM = Path("/")
RELOAD = ("systemctl", "daemon-reload")
GATE_ANSWERS_S = 3.0
SETTLE_TIMEOUT_S = 120.0  # systemctl stop waits for a daemon that ends its sessions
NEXT = """\
next:
  systemctl enable --now farm-adb.service farm-gate.socket farm.service
  usermod -aG farm YOU          # who may use phones; it counts from their next login
  farm auth new YOU --role operator --web   # a token for the web page, as root
  farm doctor                   # what this host still lacks
  journalctl -u farm -f         # what it says"""
ELSEWHERE = f"make an environment elsewhere: python3 -m venv /opt/farm && {pip_install('tvm', '/opt/farm/bin/python')}"
LEFT = """\
what people made stays: /var/lib/farm, and the users farm and farm-job. To remove these too:
  rm -r /var/lib/farm && userdel farm && userdel farm-job"""
UNITS = ("farm.service", "farm-adb.service", "farm-gate.service", "farm-gate.socket", "farm-head.service")
# By unit: the command that restarts it, and what that ends.
RESTARTS = {
    "farm-adb.service": ("systemctl restart farm-adb", "ends every session, and the phones' links for a second or two"),
    "farm-gate.socket": ("systemctl stop farm-gate && systemctl restart farm-gate.socket", "ends every session"),
    "farm-gate.service": ("systemctl restart farm-gate", "ends every session"),
    "farm-head.service": ("systemctl restart farm-head", "nothing is handed out for some 5 s"),
    "farm.service": ("systemctl restart farm", "repeats running jobs; sessions and people's leases continue"),
}
UNIT_FOLDER = "etc/systemd/system"
SYSUSERS = "etc/sysusers.d/farm.conf"
CONFIG = "etc/farm/farm.toml"
# What lets the units of a host of a lab reach the other hosts (farm.cli.lab_setup); nothing is there otherwise.
DROP_INS = tuple(
    f"{UNIT_FOLDER}/{unit}.d/lab.conf" for unit in ("farm.service", "farm-head.service", "farm-gate.service")
)
UDEV_EXAMPLE = "etc/farm/51-farm-phones.rules.example"
CLOSED_BY_PROTECT_HOME = ("/home", "/root", "/run/user")
CHANGES = ("write", "replace", "remove")
PRIVATE = ("/tmp", "/var/tmp")  # noqa: S108 (what PrivateTmp= hides)


def install_service(
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Stop the units and remove what was installed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the files themselves, and do nothing.")] = False,
    prefix: Annotated[Path, typer.Option(help="Another root folder, for packages; nothing is started.")] = SYSTEM,
    json: JsonFlag = False,
) -> None:
    """Install the systemd units that run farm with this interpreter (root; docs/service.md).

    farm.service, farm-adb.service (owns the phones), farm-gate.service and .socket (the one TVM port), the users farm
    and farm-job, an example of /etc/farm/farm.toml unless there is one. Do it again to bring them up to date: it
    first says what must be restarted afterwards, and what that ends.
    """
    folders = used_folders()
    wanted = files(shipped(), _nameable(folders), folders)
    if show:
        for line in (line for path, text in wanted.items() for line in (f"# /{path}", *text.splitlines())):
            print_line(line)
        return
    if unseen := hidden(folders):
        raise UserError(
            f"a service cannot run from {unseen[0]}: any user may write there, and its sandbox has another",
            hint=ELSEWHERE,
        )
    prefix = prefix.absolute()
    if not (there := next(each for each in (prefix, *prefix.parents) if os.path.lexists(each))).is_dir():
        raise UserError(f"{there} is no folder", hint="give --prefix the root folder of a system")
    with _not_done(prefix):
        if uninstall:
            steps = tuple(uninstall_steps(wanted, installed(prefix, (*wanted, *DROP_INS))))
        else:
            steps = tuple(install_steps(wanted, installed(prefix, wanted)))
    doing = [step for step in steps if step.doing in CHANGES]
    before, after = commands_for(steps, uninstall=uninstall) if prefix == SYSTEM else ((), ())
    runs = systemd_runs()
    running = _running() if runs and prefix == SYSTEM and not uninstall else Running()
    later = tuple(restarts(steps, running))
    done = [{"doing": step.doing, "path": str(prefix / step.path), "why": step.why} for step in steps]
    lines = _step_lines(prefix, steps, before, after, runs=runs)
    emit({"steps": done, "restarts": [*map(asdict, later)]}, (*lines, *map(str, later)), json=json)
    root_lacks = prefix == SYSTEM and os.geteuid() != 0 and bool(doing)
    as_root = f"sudo {sys.executable} -m farm install-service{' --uninstall' if uninstall else ''}"
    if dry_run:
        if root_lacks:
            print_note(f"to do it takes root: {as_root}")
        return
    if root_lacks:
        raise NotAllowedError("installing a service takes root", hint=f"{as_root}, or look: --dry-run")
    if runs:
        run_commands(before)
    with _not_done(prefix):
        for step in doing:
            (_remove if uninstall else write_file)(prefix, step)
    if runs:
        run_commands(after)
    for line in () if json else (LEFT if uninstall else NEXT).splitlines():
        print_line(line)


def _nameable(folders: Sequence[str]) -> str:
    """This interpreter, which units name as they do `folders`.

    Raises:
        UserError: a unit cannot.
    """
    from farm.cli.install_service import unwritable

    if strange := unwritable((sys.executable, *folders)):
        raise UserError(
            f"a unit cannot name {strange[0]!r}: it has a quote, a backslash, a dollar or a control character",
            hint=ELSEWHERE,
        )
    return sys.executable


def _step_lines(
    prefix: Path, steps: Sequence[FileStep], before: Commands, after: Commands, *, runs: bool
) -> Iterator[str]:
    run = "run" if runs else "not run"
    yield from (f"{run:9} {' '.join(command)}" for command in before)
    for step in steps:
        yield f"{step.doing:9} {prefix / step.path}{step.why and f' ({step.why})'}"
    yield from (f"{run:9} {' '.join(command)}" for command in after)
    if (before or after) and not runs:
        yield "systemd does not run on this host: run the commands that are marked `not run` where it does"


def systemd_runs() -> bool:
    """Whether this system was started by systemd (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def commands_for(steps: Sequence[FileStep], *, uninstall: bool) -> tuple[Commands, Commands]:
    """Commands for the running system before and after `steps`, about units that exist."""
    from farm.cli.install_service import CHANGES, UNIT_FOLDER

    doing = [step for step in steps if step.doing in CHANGES]
    if not doing:
        return (), ()
    if not uninstall:
        return (), (("systemd-sysusers",), RELOAD)
    units = [unit for unit in UNITS if f"{UNIT_FOLDER}/{unit}" in {step.path for step in doing}]
    return ((("systemctl", "disable", "--now", *units),) if units else ()), (RELOAD,)


def run_commands(commands: Sequence[Sequence[str]]) -> None:
    """Run commands of the system, one after the other, until one fails.

    Raises:
        HostError: it is not there, takes too long, or fails.
    """
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SETTLE_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(
                f"{command[0]} did not do it: {error}", hint=f"run it yourself: {' '.join(command)}"
            ) from error
        if done.returncode != 0:
            hint = "its words are above; then repeat this command"
            raise HostError(f"{' '.join(command)} failed", hint=hint, evidence=done.stderr)


@contextlib.contextmanager
def _folder_of(prefix: Path, path: Path) -> Iterator[int]:
    """A descriptor of the folder of `path`, made if need be; links below the prefix are not followed.

    Raises:
        UserError: a folder below the prefix is a link.
        OSError: it cannot be opened.
    """
    prefix.mkdir(parents=True, exist_ok=True)
    at, below = os.open(prefix, os.O_DIRECTORY), prefix
    try:
        for part in path.parent.relative_to(prefix).parts:
            below /= part
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=at)
            try:
                inner = os.open(part, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            except NotADirectoryError as error:
                raise UserError(
                    f"{below} is a link or no folder: nothing is done behind it", hint="put a folder in its place"
                ) from error
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


def write_file(prefix: Path, step: FileStep) -> None:
    """Write a file whole or not at all: systemd may read it at any moment.

    Raises:
        UserError: a folder below `prefix` is a link.
        OSError: it cannot be written.
    """
    path = prefix / step.path
    part = f".{path.name}.{secrets.token_hex(8)}.part"
    with _folder_of(prefix, path) as folder:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(step.text)
            os.fchmod(descriptor, 0o644)
        os.rename(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove(prefix: Path, step: FileStep) -> None:
    """The file, and of another root folder also the folders that are empty without it."""
    path = prefix / step.path
    with _folder_of(prefix, path) as folder:
        os.unlink(path.name, dir_fd=folder)
    keep = {prefix, *(Path("/") / part for part in ("etc", "etc/systemd", "etc/systemd/system", "etc/sysusers.d"))}
    for parent in path.parents:
        if parent in keep or not parent.is_relative_to(prefix):
            return
        try:
            parent.rmdir()
        except OSError:
            return  # it holds other files


@contextlib.contextmanager
def _not_done(prefix: Path) -> Iterator[None]:
    """Raise refusals of the host below `prefix` in words."""
    try:
        yield
    except OSError as error:
        kind = NotAllowedError if isinstance(error, PermissionError) else HostError
        raise kind(
            f"cannot write below {prefix}: {error.filename or ''} {error.strerror}".replace(":  ", ": "),
            hint="root may: sudo" if isinstance(error, PermissionError) else "look at that folder",
        ) from error


@dataclass(frozen=True, slots=True)
class FileStep:
    """One file and the action on it: one that people edit is kept."""

    doing: Literal["write", "replace", "unchanged", "keep", "remove"]
    path: str
    text: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """What of farm runs on this host."""

    units: frozenset[str] = frozenset()
    release: str = ""  # of the daemon; "": it does not answer
    gate_fits: bool = True  # a daemon of this release can work with the gate


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart for the operator to make."""

    command: str
    why: str
    ends: str

    def __str__(self) -> str:
        """One line."""
        return f"{'later':9} {self.command} ({self.why}): {self.ends}"


def _running() -> Running:
    command = ("systemctl", "is-active", *RESTARTS)
    states = subprocess.run(command, capture_output=True, text=True, timeout=SETTLE_TIMEOUT_S, check=False).stdout
    units = frozenset(unit for unit, state in zip(RESTARTS, states.split(), strict=False) if state == "active")
    release = ""
    with contextlib.suppress(FarmError):
        release = str(call("status")["version"])
    socket_unit = shipped()["farm-gate.socket"]
    path = next(line.partition("=")[2] for line in socket_unit.splitlines() if line.startswith("ListenSequential"))
    return Running(units, release, "farm-gate.service" not in units or gate_fits(path))


def gate_fits(path: str) -> bool:
    """Whether a daemon of this release can work with the gate at that socket, which is left as it was."""
    from farm.tvm_server.gate import messages as m

    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(GATE_ANSWERS_S)
        sock.connect(path)
        sock.send(m.encode(m.Notice(m.Signal.DAEMON_READY)))  # no hello: the gate answers that it refuses
        return m.version_of(sock.recv(m.MAX_MESSAGE_BYTES)) == m.VERSION
    return True  # the daemon's start will say what is wrong


def shipped() -> Mapping[str, str]:
    """Name -> text of the files that ship with farm: inside the installed package, or beside it in a source tree."""
    package = Path(__file__).parents[1]
    folder = next(place for place in (package / "systemd", package.parent / "systemd") if place.is_dir())
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file()}


def used_folders() -> tuple[str, ...]:
    """Where this interpreter, its libraries and farm itself are."""
    import farm

    folders = (sys.prefix, sys.base_prefix, str(Path(farm.__file__).parents[1]), str(Path(sys.executable).parent))
    return tuple(dict.fromkeys(str(Path(folder).absolute()) for folder in folders))


def files(texts: Mapping[str, str], python: str, folders: Sequence[str]) -> dict[str, str]:
    """Every file of the service: its path below the root folder, and its text.

    Args:
        texts: as shipped.
        python: the interpreter that runs it, an absolute path.
        folders: what it needs to read beyond the system's own folders.
    """
    at_home = [folder for folder in folders if _below(folder, CLOSED_BY_PROTECT_HOME)]
    filled = {
        "@PYTHON@": _as_program(python),
        "@HOME_ACCESS@": "tmpfs" if at_home else "yes",
        "@HOME_PATHS@": "".join(f"BindReadOnlyPaths={_as_bound(folder)}\n" for folder in at_home),
    }

    def fill(text: str) -> str:
        for name, value in filled.items():
            text = text.replace(name, value)
        return text

    return {
        **{f"{UNIT_FOLDER}/{unit}": fill(texts[unit]) for unit in UNITS},
        SYSUSERS: texts["sysusers.conf"],
        UDEV_EXAMPLE: texts["51-farm-phones.rules"],
        CONFIG: texts["farm.toml"],
    }


def hidden(folders: Sequence[str]) -> tuple[str, ...]:
    """Folders that the units cannot see at all; no service should run from them."""
    return tuple(folder for folder in folders if _below(folder, PRIVATE))


def unwritable(paths: Sequence[str]) -> tuple[str, ...]:
    """Paths that mean something else in a unit, however they are written: systemd reads some values twice."""
    return tuple(path for path in paths if any(each in "\"'\\$" or not each.isprintable() for each in path))


def restarts(steps: Sequence[FileStep], running: Running) -> Iterator[Restart]:
    """The restarts that are left to the operator: of units that run, and are another's now."""
    replaced = {step.path.rpartition("/")[2] for step in steps if step.doing == "replace"}
    for unit, (command, ends) in RESTARTS.items():
        of_gate = unit == "farm-gate.service"
        if unit not in running.units or (of_gate and "farm-gate.socket" in replaced):
            continue
        if unit in replaced:
            yield Restart(command, "its unit changes", ends)
        elif of_gate and not running.gate_fits:
            yield Restart(command, "its release does not fit this one", ends)
        elif unit in ("farm.service", "farm-head.service") and running.release != __version__:
            yield Restart(command, "to run this release", ends)


def install_steps(wanted: Mapping[str, str], there: Mapping[str, str]) -> Iterator[FileStep]:
    """The steps to the wanted files; both: path -> text."""
    for path, text in wanted.items():
        if path not in there:
            yield FileStep("write", path, text)
        elif there[path] == text:
            yield FileStep("unchanged", path)
        elif path == CONFIG:
            yield FileStep("keep", path, why="it is yours")
        else:
            yield FileStep("replace", path, text)


def uninstall_steps(wanted: Mapping[str, str], there: Mapping[str, str]) -> Iterator[FileStep]:
    """The steps that remove all but people's own files; both: path -> text."""
    for path in there:
        if path == CONFIG and there[path] != wanted[path]:
            yield FileStep("keep", path, why="it was changed: remove it yourself")
        else:
            yield FileStep("remove", path)


def installed(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """Path -> text of those files that exist below `root`. Raises OSError when one cannot be read."""
    return {
        path: (root / path).read_text(encoding="utf-8", errors="replace") for path in paths if (root / path).is_file()
    }


def _below(folder: str, places: Sequence[str]) -> bool:
    return any(PurePosixPath(folder).is_relative_to(place) for place in places)


def _as_program(path: str) -> str:
    r"""As the first word of ExecStart=: `%` begins a specifier, blanks end the word, C escapes are understood."""
    return path.replace("%", "%%").replace(" ", "\\x20")


def _as_bound(path: str) -> str:
    r"""As a word of BindReadOnlyPaths=: quoted for its blanks, `%` begins a specifier, `:` the destination."""
    return '"' + path.replace("%", "%%").replace(":", "\\:") + '"'
