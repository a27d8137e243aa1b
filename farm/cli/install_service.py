"""`farm install-service`: the units of systemd that run the farm, for this very interpreter."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farm.cli.context import JsonFlag, print_json, say, tell
from farm.core.errors import HostError, NotAllowedError, UserError
from farm.core.extras import pip_install

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from farm.cli.units import Step

Commands = tuple[tuple[str, ...], ...]

SYSTEM = Path("/")
RELOAD = ("systemctl", "daemon-reload")
SETTLE_TIMEOUT_S = 120.0  # systemctl stop waits for a daemon that ends its sessions
NEXT = """\
next:
  systemctl enable --now farm-adb.service farm-gate.socket farm.service
  usermod -aG farm YOU          # who may use phones; it counts from their next login
  farm doctor                   # what this host still lacks
  journalctl -u farm -f         # what it says"""
ELSEWHERE = f"make an environment elsewhere: python3 -m venv /opt/farm && {pip_install('tvm', '/opt/farm/bin/python')}"
LEFT = """\
what people made stays: /var/lib/farm, and the users farm and farm-job. To remove these too:
  rm -r /var/lib/farm && userdel farm && userdel farm-job"""


def install_service(
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Stop the units and remove what was installed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Print the files themselves, and do nothing.")] = False,
    prefix: Annotated[Path, typer.Option(help="Another root folder, for packages; nothing is started.")] = SYSTEM,
    json: JsonFlag = False,
) -> None:
    """Install the systemd units that run farm with this interpreter (root; docs/service.md).

    farm.service, farm-adb.service (owns the phones), farm-gate.service and .socket (the one TVM port), the users farm
    and farm-job, an example of /etc/farm/farm.toml unless there is one. Do it again to bring them up to date.
    """
    from farm.cli.units import CHANGES, files, hidden, install_steps, look, shipped, uninstall_steps, used_folders

    folders = used_folders()
    wanted = files(shipped(), _nameable(folders), folders)
    if show:
        for file in wanted:
            _tell_lines(f"# /{file.path}\n{file.text}")
        return
    if unseen := hidden(folders):
        raise UserError(
            f"a service cannot run from {unseen[0]}: everybody may write there, and its sandbox has another",
            hint=ELSEWHERE,
        )
    prefix = prefix.absolute()
    with _not_done(prefix):
        steps = tuple((uninstall_steps if uninstall else install_steps)(wanted, look(prefix, wanted)))
    doing = [step for step in steps if step.doing in CHANGES]
    before, after = commands_for(steps, uninstall=uninstall) if prefix == SYSTEM else ((), ())
    runs = systemd_runs()
    if json:
        print_json([{"doing": step.doing, "path": str(prefix / step.path), "why": step.why} for step in steps])
    else:
        _tell_steps(prefix, steps, before, after, runs=runs)
    root_lacks = prefix == SYSTEM and os.geteuid() != 0 and bool(doing)
    as_root = f"sudo {sys.executable} -m farm install-service{' --uninstall' if uninstall else ''}"
    if dry_run:
        if root_lacks:
            say(f"to do it takes root: {as_root}")
        return
    if root_lacks:
        raise NotAllowedError("installing a service takes root", hint=f"{as_root}, or look: --dry-run")
    if runs:
        _run(before)
    with _not_done(prefix):
        for step in doing:
            (_remove if uninstall else _write)(prefix, step)
    if runs:
        _run(after)
    if not json:
        _tell_lines(LEFT if uninstall else NEXT)


def _nameable(folders: Sequence[str]) -> str:
    """This interpreter, which units name as they do `folders`.

    Raises:
        UserError: a unit cannot.
    """
    from farm.cli.units import unwritable

    if strange := unwritable((sys.executable, *folders)):
        raise UserError(
            f"a unit cannot name {strange[0]!r}: it has a quote, a backslash, a dollar or a control character",
            hint=ELSEWHERE,
        )
    return sys.executable


def _tell_steps(prefix: Path, steps: Sequence[Step], before: Commands, after: Commands, *, runs: bool) -> None:
    _tell_commands(before, runs=runs)
    for step in steps:
        tell(f"{step.doing:9} {prefix / step.path}{step.why and f' ({step.why})'}")
    _tell_commands(after, runs=runs)
    if (before or after) and not runs:
        tell("systemd does not run on this host: what is marked `not run` is yours to do where it does")


def _tell_commands(commands: Commands, *, runs: bool) -> None:
    for command in commands:
        tell(f"{'run' if runs else 'not run':9} {' '.join(command)}")


def _tell_lines(text: str) -> None:
    for line in text.splitlines():
        tell(line)


def systemd_runs() -> bool:
    """Whether this system was started by systemd (sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def commands_for(steps: Sequence[Step], *, uninstall: bool) -> tuple[Commands, Commands]:
    """What the running system is told before and after `steps`: of units only those that there are."""
    from farm.cli.units import CHANGES, UNIT_FOLDER

    doing = [step for step in steps if step.doing in CHANGES]
    if not doing:
        return (), ()
    if not uninstall:
        return (), (("systemd-sysusers",), RELOAD)
    units = [step.path.rpartition("/")[2] for step in doing if step.path.startswith(UNIT_FOLDER)]
    return ((("systemctl", "disable", "--now", *units),) if units else ()), (RELOAD,)


def _run(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SETTLE_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostError(
                f"{command[0]} did not do it: {error}", hint=f"run it yourself: {' '.join(command)}"
            ) from error
        if done.returncode != 0:
            raise HostError(
                f"{' '.join(command)} failed", hint="its words are above; then once more: farm install-service",
                evidence=done.stderr,
            )  # fmt: skip


@contextlib.contextmanager
def _folder_of(prefix: Path, path: Path) -> Iterator[int]:
    """A descriptor of the folder of `path`, made if need be; whoever owns the prefix leads root nowhere by a link.

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


def _write(prefix: Path, step: Step) -> None:
    """Whole or not at all: systemd may read it at any moment."""
    path = prefix / step.path
    part = f".{path.name}.{secrets.token_hex(8)}.part"
    with _folder_of(prefix, path) as folder:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(step.text)
            os.fchmod(descriptor, 0o644)
        os.rename(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove(prefix: Path, step: Step) -> None:
    """The file, and of another root folder also what is empty without it."""
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
            return  # somebody's files are in it


@contextlib.contextmanager
def _not_done(prefix: Path) -> Iterator[None]:
    """What the host refuses below `prefix`, in words."""
    try:
        yield
    except OSError as error:
        kind = NotAllowedError if isinstance(error, PermissionError) else HostError
        raise kind(
            f"cannot write below {prefix}: {error.filename or ''} {error.strerror}".replace(":  ", ": "),
            hint="root may: sudo" if isinstance(error, PermissionError) else "look at that folder",
        ) from error
