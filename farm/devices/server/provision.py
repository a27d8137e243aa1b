"""Files on a phone: farm's runtime, pushed as far as it is missing; a person's residue, noted and removed.

A bundle is verified in one shell round trip and never half-installed. It lives in a folder named by its hash. Until
every file is there and verified the folder has another name, so a push that was cut leaves nothing that could be taken
for a bundle, and the next push continues where it stopped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from shlex import quote

from farm.adb.client import AdbClient
from farm.adb.push import PushFile, PushProgress, push_tree
from farm.bundle.model import Bundle
from farm.common.errors import Code, HostError, PhoneError, UserError
from farm.common.files import is_sha256
from farm.common.phone_text import SECTION, split_sections
from farm.devices.server.phone_paths import (
    BIN,
    BUNDLES,
    INCOMING,
    LEASE,
    LEDGER,
    MARKER,
    NOTE,
    SUPERVISE,
    bundle_folder,
    incoming_folder,
    scripts,
    scripts_changed,
    scripts_hash,
)
from farm.devices.server.rpc_server import RunningServer, ServerStatus, StuckProcessError, parse_status, script_error

READ_TIMEOUT_S = 15.0
INSTALL_TIMEOUT_S = 30.0
SCRIPT_MODE = 0o755
_BUNDLE_NAME = re.compile(rf"(?:{re.escape(INCOMING)})?[0-9a-f]{{8,64}}")


@dataclass(frozen=True, slots=True)
class InstalledState:
    """The files that are on a phone already."""

    scripts_current: bool  # this version's marker, names, sizes and modes
    bundle_whole: bool  # marker, names, sizes and modes are right
    others: tuple[str, ...]  # other folders beside the bundle's
    server: ServerStatus
    noted: bool = False  # a person has or had it: what was there before is noted on it
    quiet: bool = False  # values of the phone differ from those before a measurement
    pushed_files: int = 0  # by `provision`


async def provision(
    client: AdbClient,
    serial: str,
    bundle: Bundle,
    *,
    server: RunningServer | None = None,
    deep: bool = False,
    push_slot: AbstractAsyncContextManager[object] | None = None,
    progress: Callable[[PushProgress], None] | None = None,
) -> InstalledState:
    """Make the device scripts and `bundle` whole on the phone; returns the former contents and the present server.

    Args:
        client: of the adb server that has the phone.
        serial: as listed.
        bundle: what shall be there.
        server: the server we believe runs there, to be judged in the same round trip.
        deep: compare every file by hash although all looks whole.
        push_slot: entered around a push: a limit of pushes at a time.
        progress: called while files are sent.

    Raises:
        PhoneStorageFull: not enough room; says what is needed and what is free.
        PhoneError: the folder could not be renamed into place.
        HostError: the host's copy of the bundle is not there any more, or not as it was.
        AdbError: phone or link failed; nothing half-installed is left.
    """
    found = await read_installed(client, serial, bundle, server)
    whole, current = found.bundle_whole and not deep, found.scripts_current and not deep
    if whole and current:
        return found
    files = [] if current else _script_files()
    room = keep_only(BIN, [MARKER, *(file.name for file in scripts())])
    if not whole:
        files += _bundle_files(bundle)
        room += _make_room(bundle)
    await run_script(client, serial, room)
    async with push_slot or nullcontext():
        pushed = await _push(client, serial, bundle, files, progress)
    await run_script(client, serial, _finish("" if current else scripts_hash(), "" if whole else bundle.hash))
    server_now = found.server if whole else ServerStatus(False, "the bundle was replaced under it")
    return replace(found, server=server_now, pushed_files=pushed)


async def repair_scripts(client: AdbClient, serial: str) -> int:
    """Push the device scripts whose hashes differ; returns their number.

    Raises:
        PhoneError, HostError: as `provision`.
    """
    await run_script(client, serial, keep_only(BIN, [MARKER, *(file.name for file in scripts())]))
    pushed = await _push(client, serial, None, _script_files())
    await run_script(client, serial, _finish(scripts_hash(), ""))
    return pushed


async def read_installed(
    client: AdbClient, serial: str, bundle: Bundle, server: RunningServer | None
) -> InstalledState:
    """Look at scripts, bundle and server in one round trip; writes nothing."""
    result = await client.shell(serial, installed_command(bundle, server), timeout_s=READ_TIMEOUT_S)
    return parse_installed(result.stdout, bundle)


def installed_command(bundle: Bundle, server: RunningServer | None) -> str:
    """The shell text of `read_installed`."""
    names = " ".join(quote(file.name) for file in bundle.files)
    secret = server.secret_sha256 if server else "none"
    folder = bundle_folder(bundle.hash)
    return f"""\
echo '{SECTION}scripts'
cat {BIN}/{MARKER} 2>/dev/null
cd {BIN} 2>/dev/null && stat -c '%s %a %n' {" ".join(file.name for file in scripts())} 2>/dev/null
echo '{SECTION}bundles'
ls -a {BUNDLES} 2>/dev/null
echo '{SECTION}marker'
cat {folder}/{MARKER} 2>/dev/null
echo '{SECTION}files'
cd {folder} 2>/dev/null && stat -c '%s %a %n' {names} 2>/dev/null
echo '{SECTION}note'
[ ! -e {NOTE} ] || echo noted
[ ! -e {LEDGER} ] || echo quiet
echo '{SECTION}server'
[ ! -f {SUPERVISE} ] || sh {SUPERVISE} status {bundle.hash} {secret} 2>/dev/null
exit 0
"""


def parse_installed(output: bytes, bundle: Bundle) -> InstalledState:
    """Interpret the output of `installed_command`; never raises."""
    sections = split_sections(output)
    notes = sections.get("note", "").split()
    found_scripts = set(sections.get("scripts", "").splitlines())
    current = {scripts_hash(), *(f"{file.size} {SCRIPT_MODE:o} {file.name}" for file in scripts())}
    found = set(sections.get("files", "").splitlines())
    wanted = {f"{file.size} {file.mode:o} {file.name}" for file in bundle.files}
    others = tuple(
        name
        for name in sections.get("bundles", "").split()
        if _BUNDLE_NAME.fullmatch(name) and name != bundle.hash and name != f"{INCOMING}{bundle.hash}"
    )
    return InstalledState(
        scripts_current=current <= found_scripts,
        bundle_whole=sections.get("marker", "").strip() == bundle.hash and wanted <= found,
        others=others,
        server=parse_status(sections.get("server", "")),
        noted="noted" in notes,
        quiet="quiet" in notes,
    )


async def drop_bundles(client: AdbClient, serial: str, folders: Collection[str]) -> None:
    """Remove the other folders that `provision` named."""
    doomed = [f"{BUNDLES}/{name}" for name in folders if _BUNDLE_NAME.fullmatch(name)]
    if doomed:
        await run_script(client, serial, f"rm -rf {' '.join(doomed)}")


def _script_files() -> list[PushFile]:
    return [PushFile(file.local, f"{BIN}/{file.name}", SCRIPT_MODE, file.sha256) for file in scripts()]


def _bundle_files(bundle: Bundle) -> Sequence[PushFile]:
    folder = incoming_folder(bundle.hash)
    return [PushFile(bundle.path / file.name, f"{folder}/{file.name}", file.mode, file.sha256) for file in bundle.files]


async def _push(
    client: AdbClient,
    serial: str,
    bundle: Bundle | None,
    files: Sequence[PushFile],
    progress: Callable[[PushProgress], None] | None = None,
) -> int:
    """Push; returns the number of files sent. Damaged files of the host are reported as farm's or the bundle's."""
    try:
        return (await push_tree(client, serial, files, progress)).pushed_files
    except (UserError, FileNotFoundError) as error:
        if await asyncio.to_thread(scripts_changed):
            raise HostError(
                "farm's device scripts are no longer those that its daemon started with",
                hint="farm was upgraded: restart its daemon (systemctl restart farm)",
                evidence=str(error),
            ) from error
        if bundle is None:
            raise
        raise HostError(
            f"bundle {bundle.name or bundle.short_hash} was removed or damaged on this host",
            Code.BUNDLE_DAMAGED,
            hint=f"farm bundle verify {bundle.name or bundle.short_hash}, then add it again",
            evidence=str(error),
        ) from error


def keep_only(folder: str, names: Sequence[str]) -> str:
    """A folder with nothing in it but plain files of these names: a library beside them might be loaded too."""
    wanted = " -o ".join(f"-name {quote(name)}" for name in names)
    return f"""\
{real_folder(folder)}
find {folder} -mindepth 1 -maxdepth 1 ! '(' -type f '(' {wanted} ')' ')' -exec rm -rf {{}} + 2>/dev/null
"""


def real_folder(folder: str) -> str:
    """Script lines that leave a folder of that name, and no link to one."""
    return f"[ -d {folder} ] && [ ! -L {folder} ] || rm -rf {folder}; mkdir -p {folder} || exit 1"


def _make_room(bundle: Bundle) -> str:
    """The folder to push into; the rest of an earlier push, or a damaged copy, only needs repair."""
    final, incoming = bundle_folder(bundle.hash), incoming_folder(bundle.hash)
    return f"""\
{real_folder(BUNDLES)}
find {BUNDLES} -mindepth 1 -maxdepth 1 ! -type d -exec rm -f {{}} + 2>/dev/null
for each in {BUNDLES}/{INCOMING}*; do
  [ "$each" = {incoming} ] || rm -rf "$each"
done
if [ -e {final} ] || [ -L {final} ]; then
  rm -rf {incoming} && mv {final} {incoming} || exit 1
fi
{keep_only(incoming, [file.name for file in bundle.files])}"""


def _finish(scripts_hash: str, bundle_hash: str) -> str:
    """Mark the pushed files, after all of them are in place, and rename the bundle. No other file is vouched for."""
    lines = []
    if scripts_hash:
        lines += [f"echo {scripts_hash} > {BIN}/{MARKER}.new", f"mv -f {BIN}/{MARKER}.new {BIN}/{MARKER}"]
    if bundle_hash:
        final, incoming = bundle_folder(bundle_hash), incoming_folder(bundle_hash)
        lines += [f"echo {bundle_hash} > {incoming}/{MARKER}", f"mv {incoming} {final}"]
    return " && ".join(lines)


async def run_script(client: AdbClient, serial: str, command: str) -> None:
    """Run a script that prepares or ends an installation.

    Raises:
        PhoneError: it failed.
    """
    result = await client.shell(serial, command, timeout_s=INSTALL_TIMEOUT_S)
    if result.exit_code != 0:
        raise PhoneError(
            "the phone refused to install files",
            Code.INSTALL_FAILED,
            hint="look at the phone's storage: df /data, ls -l /data/local/tmp",
            evidence=result.output[-2000:],
        )


NOTE_TIMEOUT_S = 15.0  # two listings; a second on a phone with ten thousand files
REMOVE_TIMEOUT_S = 60.0  # deleting gigabytes from flash takes its time
_EVIDENCE_CHARS = 2000


async def note_residue(client: AdbClient, serial: str) -> str:
    """Note the phone's files and processes; done again under the same lease it changes nothing.

    Returns:
        The hash of the processes noted, for `remove_residue`; "" when the phone has no sha256sum.

    Raises:
        PhoneError: the script failed.
        AdbError: phone or link failed.
    """
    result = await client.shell(serial, f"sh {LEASE} begin", timeout_s=NOTE_TIMEOUT_S)
    words = result.text.split()
    if words[:1] != ["begun"]:
        raise PhoneError(
            "the phone could not note what is on it before the lease",
            hint="look at its storage: df /data, ls -l /data/local/tmp",
            evidence=result.output[-_EVIDENCE_CHARS:],
        )
    return words[-1] if is_sha256(words[-1]) else ""


async def remove_residue(client: AdbClient, serial: str, noted: str = "") -> dict[str, int]:
    """Kill and remove everything that is not in the note. `noted`: the hash of `note_residue`; "": spare no process.

    Raises:
        StuckProcessError: something survives SIGKILL.
        PhoneError: the script is not there, or said something else.
        AdbError: phone or link failed.
    """
    result = await client.shell(serial, f"sh {LEASE} clean {noted}", timeout_s=REMOVE_TIMEOUT_S)
    answer = result.text.strip()
    if answer.startswith("failed"):
        raise StuckProcessError.of(answer)
    return parse_removed(result.output)


def parse_removed(answer: str) -> dict[str, int]:
    """Read `cleaned killed=N removed=N left=N`: processes, files and folders, files that could not be removed.

    Raises:
        PhoneError: it says something else.
    """
    words = answer.split()
    figures = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    counts = {name: figures.get(name, "") for name in ("killed", "removed", "left")}
    if words[:1] != ["cleaned"] or not all(
        count.isascii() and count.isdigit() and len(count) < 10 for count in counts.values()
    ):
        raise script_error("lease.sh did not say what it did", evidence=answer[-_EVIDENCE_CHARS:])
    return {name: int(count) for name, count in counts.items()}
