"""The library of bundles on the host's disk.

    <root>/objects/<hash>/manifest.json, files/, golden/     complete and never changed
    <root>/names/<name>                                      holds a hash
    <root>/tmp/                                              work in progress; what dead processes left is swept
    <root>/lock

An object appears and disappears by one rename, a name by another. So a process killed at any moment leaves the library
as it was or as it was to be, and readers need no lock.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from farm.bundle.closure import inspect
from farm.bundle.folder import read_files, read_folder
from farm.bundle.golden import GoldenCompiler, read_golden
from farm.bundle.model import (
    BUNDLE_NAME,
    KIND_CPU,
    KIND_OPENCL,
    MANIFEST,
    MANIFEST_FORMAT,
    Bundle,
    BundleFile,
    BundleManifest,
    Identity,
    check_bundle_name,
)
from farm.bundle.storage import (
    Staging,
    copy_hashed,
    host_errors,
    locked,
    pack,
    sweep,
    unpack,
)
from farm.bundle.versions import bundle_versions
from farm.common.errors import Code, HostError, UserError
from farm.common.files import (
    hash_file,
    is_sha256,
    publish,
    remove_leftover,
    short_hash,
    sync,
    sync_tree,
    write_durably,
    written,
)
from farm.common.selector import did_you_mean

MIN_PREFIX = 4  # digits of a hash that may stand for a bundle
DEFAULT_TOOLCHAIN = "default"
_LAST = datetime.max.replace(tzinfo=UTC)
_REPAIR = "`farm bundle add` the same folder again: that repairs it"


_MANIFEST = TypeAdapter(BundleManifest)


class NoSuchBundleError(UserError):
    """No bundle has that name or hash."""

    code = "no_such_bundle"


def _silent(_step: str) -> None:
    """No progress wanted."""


class BundleLibrary:
    """Content-addressed store of bundles under `root`. Synchronous: the daemon calls it in a thread."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._objects, self._names, self._tmp = root / "objects", root / "names", root / "tmp"
        with host_errors(f"opening the bundle library {root}", root):
            for directory in (self._objects, self._names, self._tmp):
                directory.mkdir(parents=True, exist_ok=True)
            if self._objects.stat().st_mode & 0o055 != 0o055:
                self._objects.chmod(0o755)  # on workers' way to golden kernels

    def add(
        self,
        folder: Path,
        *,
        name: str,
        toolchain: str = DEFAULT_TOOLCHAIN,
        compile_golden: GoldenCompiler,
        progress: Callable[[str], None] = _silent,
    ) -> Bundle:
        """Check a folder, copy it, compile its golden kernels and give it a name; all or nothing.

        The same files for the same toolchain are the same bundle. Adding them again gives it another name and the
        versions stated now, and repairs a damaged copy. A name that another bundle has moves to this one.

        Raises:
            UserError: the name is not usable, the folder cannot be a bundle, or its versions do not fit the toolchain.
            HostError: disk or toolchain do not let us; nothing was changed.
        """
        self._check_name(name)
        source = read_folder(folder)
        source.accepted(str(folder))
        with host_errors(f"adding bundle {name}", self._root), self._staged() as staging:
            files = _copy(folder, [file.name for file in source.files], staging.path / "files", progress)
            # Judge what was copied: the folder may be rebuilt under our hands.
            inspection = inspect(read_files(staging.path / "files"), source.description)
            abi, platform = inspection.accepted(str(folder))
            modes = {file.name: file.mode for file in inspection.files}
            for file in files:
                (staging.path / "files" / file.name).chmod(modes[file.name])
            identity = Identity(abi, platform, toolchain, tuple(replace(f, mode=modes[f.name]) for f in files))
            place = self._objects / identity.hash
            kept = _load_manifest(place / MANIFEST) if self._is_sound(identity.hash) else None
            golden = (place if kept else staging.path) / "golden"
            if kept is None:
                kinds = (KIND_CPU, KIND_OPENCL) if inspection.has_opencl else (KIND_CPU,)
                progress(f"compiling golden kernels ({', '.join(kinds)}) for {abi}")
                golden.mkdir()
                compile_golden(abi, platform, kinds, golden)
            versions, doubts = bundle_versions(name, inspection.versions, toolchain, read_golden(golden).versions)
            manifest = BundleManifest(
                format=MANIFEST_FORMAT,
                identity=identity,
                tvm_version=versions.tvm,
                ffi_version=versions.ffi,
                has_opencl=inspection.has_opencl,
                has_random_fill=inspection.has_random_fill,
                warnings=(*(f"{each.message}; {each.hint}" for each in inspection.warnings), *doubts),
                added_at=kept.added_at if kept else datetime.now(UTC),
                golden_files=kept.golden_files if kept else _described(golden),
            )
            if manifest != kept:
                (staging.path / MANIFEST).write_bytes(_MANIFEST.dump_json(manifest, indent=1) + b"\n")
                sync_tree(staging.path)
            self._publish(staging, identity.hash, name)
        return self.get(name)

    def add_packed(
        self,
        packed: Path,
        *,
        name: str,
        toolchain: str,
        compile_golden: GoldenCompiler,
        progress: Callable[[str], None],
    ) -> Bundle:
        """As `add`, for a folder that a client has packed (`pack_folder`).

        Raises:
            UserError: as `add`, or the file is no packed folder.
            HostError: as `add`.
        """
        with host_errors(f"adding bundle {name}", self._root), self._staged() as staging:
            unpack(packed, staging.path)
            folder = staging.path / "files"
            return self.add(folder, name=name, toolchain=toolchain, compile_golden=compile_golden, progress=progress)

    def pack(self, hash_: str, file: IO[bytes]) -> None:
        """Write a bundle as one file, for `take_in` of another host.

        Raises:
            NoSuchBundleError: there is no such bundle.
            HostError: it cannot be read.
        """
        place = self._objects / self._resolve(hash_, {})
        with host_errors(f"packing bundle {short_hash(hash_)}", self._root):
            pack(place, file)

    def take_in(self, packed: Path, hash_: str, name: str) -> Bundle:
        """Keep a bundle that another host has packed, under a name; all or nothing.

        Raises:
            UserError: the name is not usable, or the file is not that bundle.
            HostError: the disk does not let us; nothing was changed.
        """
        self._check_name(name)
        with host_errors(f"taking in bundle {name}", self._root), self._staged() as staging:
            if not self._is_sound(hash_):
                unpack(packed, staging.path)
                if damages := [*_damages(staging.path, hash_)]:
                    raise UserError(f"this is not bundle {short_hash(hash_)}: {damages[0]}", Code.BAD_BUNDLE)
                manifest = _load_manifest(staging.path / MANIFEST)
                for part, files in (("files", manifest.identity.files), ("golden", manifest.golden_files)):
                    for each in files:
                        (staging.path / part / each.name).chmod(each.mode)
                sync_tree(staging.path)
            self._publish(staging, hash_, name)
        return self.get(name)

    def list(self) -> tuple[Bundle, ...]:
        """All bundles, oldest first; after them those whose manifest is unreadable, with their `damage`."""
        names = self._hashes_by_name()
        found = [self._load_even_damaged(hash_, names) for hash_ in self._stored_hashes()]
        stored = [each for each in found if not each.damage or each.path.parent.exists()]  # else removed meanwhile
        return tuple(sorted(stored, key=lambda bundle: (bundle.added_at or _LAST, bundle.hash)))

    def get(self, name: str) -> Bundle:
        """The bundle with that name, or whose hash starts with it.

        Raises:
            NoSuchBundleError: there is none, or several hashes start so.
            HostError: its manifest is unreadable.
        """
        names = self._hashes_by_name()
        hash_ = self._resolve(name, names)
        bundle = self._load(hash_, _names_of(hash_, names))
        return replace(bundle, name=name) if name in names else bundle

    def hash_of(self, name: str) -> str:
        """The hash of a bundle by its name or the start of its hash, also with an unreadable manifest.

        Raises:
            NoSuchBundleError: there is none, or several hashes start so.
        """
        return self._resolve(name, self._hashes_by_name())

    def for_abi(self, abi: str, platform: str | None = None) -> Bundle | None:
        """The bundle for a device: of that ABI (and platform), the one whose name was set last; None if there is none.

        A phone and a virtual phone may both be x86_64; `platform` tells them apart (Platform.ANDROID, Platform.LINUX).
        """
        fitting = [
            bundle
            for bundle in self.list()
            if not bundle.damage and bundle.abi == abi and bundle.names and platform in (None, bundle.platform)
        ]
        return max(fitting, key=self._named_at, default=None)

    def remove(
        self, name: str, *, in_use: Callable[[Bundle], str] = lambda _bundle: ""
    ) -> tuple[tuple[str, ...], bool]:
        """Take a name away, and the files with the last name; by hash: the bundle with all its names.

        Returns the names that are gone, and whether the files went with the last of them. `in_use` returns why a bundle
        must stay ("on pixel-7"), "" if it may go. It is asked under the library's lock.

        Raises:
            NoSuchBundleError: there is no such bundle.
            UserError: its files would go, and `in_use` gave a reason.
        """
        with host_errors(f"removing bundle {name}", self._root), locked(self._root / "lock"):
            names = self._hashes_by_name()
            bundle = self._load_even_damaged(self._resolve(name, names), names)
            going = (name,) if name in bundle.names else bundle.names
            last = set(going) == set(bundle.names)
            if last and (reason := in_use(bundle)):
                raise UserError(
                    f"bundle {name} is in use: {reason}",
                    Code.BUNDLE_IN_USE,
                    hint="wait, or drain the devices that use it first",
                )
            with closing(Staging(self._tmp)) as trash:  # first: on a full disk there may be no room for it
                for unused in going:
                    (self._names / unused).unlink(missing_ok=True)
                sync(self._names)
                if last:
                    self._discard(bundle.hash, trash)
            return going, last

    def verify(self, name: str | None = None) -> tuple[str, ...]:
        """Read every byte of one bundle (or of all) again; "file: difference" for each that the manifest does not have.

        Raises:
            NoSuchBundleError: there is no such bundle.
        """
        hashes = (self._resolve(name, self._hashes_by_name()),) if name is not None else self._stored_hashes()
        with host_errors("verifying bundles", self._root):
            return tuple(damage for hash_ in hashes for damage in _damages(self._objects / hash_, hash_))

    def _check_name(self, name: str) -> None:
        """Refuse a name that no bundle can have. Raises UserError, HostError."""
        check_bundle_name(name)
        if (path := self._names / name).is_dir():
            raise HostError(f"{path} must be a file, and is a folder", hint=f"move it away: mv {path} {self._root}")

    @contextlib.contextmanager
    def _staged(self) -> Iterator[Staging]:
        """A folder in which a bundle is put together; what dead processes left is removed first."""
        with locked(self._root / "lock"):
            sweep(self._tmp)
            staging = Staging(self._tmp)
        with closing(staging):
            yield staging

    def _publish(self, staging: Staging, hash_: str, name: str) -> None:
        """Move a finished bundle to its place, unless a sound one is there, and name it.

        The name is on the disk before the bundle gets its place: a disk that fills up leaves no bundle without a name.
        """
        file = self._names / name
        sound = self._is_sound(hash_)  # it reads the whole bundle: not under the lock
        with locked(self._root / "lock"):
            for left in self._names.glob(".*"):  # of a process that was killed
                remove_leftover(left)
            with written(file, f"{hash_}\n".encode()):
                if not (sound and (self._objects / hash_).is_dir()):
                    self._place(staging, hash_)
                elif (staging.path / MANIFEST).exists() and not (staging.path / "golden").exists():  # other versions
                    write_durably(self._objects / hash_ / MANIFEST, (staging.path / MANIFEST).read_bytes())
            # The name given last is wanted, though the clock was once ahead.
            newest = max(each.lstat().st_mtime_ns for each in self._names.iterdir())
            if newest > file.stat().st_mtime_ns:
                os.utime(file, ns=(newest + 1, newest + 1))

    def _place(self, staging: Staging, hash_: str) -> None:
        """Move a finished bundle to its place, where nothing or a damaged one is."""
        if not (staging.path / "golden").exists():
            raise HostError(f"bundle {short_hash(hash_)} was removed meanwhile", hint="add it again")
        # The staging folder itself stays, with its lock: only what is in it moves.
        ready = staging.path.with_name(f"{staging.path.name}.ready")
        ready.mkdir()
        for part in (MANIFEST, "files", "golden"):
            (staging.path / part).rename(ready / part)
        for each in (ready, ready / "golden"):
            each.chmod(0o755)  # workers of another user read golden kernels, whatever the daemon's umask is
        if (self._objects / hash_).exists():
            with closing(Staging(self._tmp)) as trash:
                self._discard(hash_, trash)
        publish(ready, self._objects / hash_)

    def _discard(self, hash_: str, trash: Staging) -> None:
        """Make an object vanish by one rename; it is deleted with `trash`. Under the lock only."""
        (self._objects / hash_).rename(trash.path / hash_)
        sync(self._objects)

    def _stored_hashes(self) -> tuple[str, ...]:
        stored = (path.name for path in self._objects.iterdir() if is_sha256(path.name) and path.is_dir())
        return tuple(sorted(stored))

    def _hashes_by_name(self) -> dict[str, str]:
        found = {}
        for path in sorted(self._names.iterdir()):
            with contextlib.suppress(OSError, UnicodeDecodeError):  # removed meanwhile, or no name that farm wrote
                if BUNDLE_NAME.fullmatch(path.name):
                    found[path.name] = path.read_text().strip()
        return found

    def _named_at(self, bundle: Bundle) -> int:
        """When a name was last given to it, in ns since the epoch; 0 if they are gone meanwhile."""
        times = [0]
        for name in bundle.names:
            with contextlib.suppress(FileNotFoundError):
                times.append((self._names / name).stat().st_mtime_ns)
        return max(times)

    def _resolve(self, name: str, names: dict[str, str]) -> str:
        stored = self._stored_hashes()
        if (named := names.get(name, "")) in stored:
            return named
        matching = [hash_ for hash_ in stored if len(name) >= MIN_PREFIX and hash_.startswith(name)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            shown = ", ".join(short_hash(hash_) for hash_ in matching)
            raise NoSuchBundleError(
                f"{name} may be any of {len(matching)} bundles", hint=f"give more digits of: {shown}"
            )
        none = "there are none yet: `farm bundle build NAME`"
        hint = did_you_mean(name, names, f"there are: {', '.join(names)}" if names else none)
        raise NoSuchBundleError(f"there is no bundle {name}", hint=hint)

    def _load_even_damaged(self, hash_: str, names: dict[str, str]) -> Bundle:
        """A bundle whose manifest is unreadable shows its hash, names and damage, nothing else."""
        named = _names_of(hash_, names)
        try:
            return self._load(hash_, named)
        except HostError as error:
            name, place = named[0] if named else "", self._objects / hash_ / "files"
            return Bundle(name, hash_, "", (), place, "", (), "", False, names=named, damage=error.message)

    def _load(self, hash_: str, names: tuple[str, ...]) -> Bundle:
        place = self._objects / hash_
        manifest = _load_manifest(place / MANIFEST)
        identity = manifest.identity
        return Bundle(
            name=names[0] if names else "",
            hash=hash_,
            abi=identity.abi,
            files=identity.files,
            path=place / "files",
            toolchain=identity.toolchain,
            golden_kinds=tuple(sorted(read_golden(place / "golden").kernels)) if manifest.golden_files else (),
            tvm_version=manifest.tvm_version,
            ffi_version=manifest.ffi_version,
            has_opencl=manifest.has_opencl,
            platform=identity.platform,
            has_random_fill=manifest.has_random_fill,
            names=names,
            warnings=manifest.warnings,
            added_at=manifest.added_at,
        )

    def _is_sound(self, hash_: str) -> bool:
        return (self._objects / hash_).exists() and not any(_damages(self._objects / hash_, hash_))


def _damages(place: Path, hash_: str) -> Iterator[str]:
    try:
        manifest = _load_manifest(place / MANIFEST)
    except HostError as error:
        yield f"{MANIFEST}: is unreadable: {error.message}"
        return
    if manifest.identity.hash != hash_:
        yield f"{MANIFEST}: was changed: its hash is another one"
    for part, files in (("files", manifest.identity.files), ("golden", manifest.golden_files)):
        expected = {file.name: file for file in files}
        present = {path.name for path in (place / part).iterdir()} if (place / part).is_dir() else set()
        for name in sorted(expected.keys() | present):
            if problem := _difference(place / part / name, expected.get(name)):
                yield f"{part}/{name}: {problem}"


def _difference(path: Path, expected: BundleFile | None) -> str:
    if expected is None:
        return "does not belong there"
    if not path.is_file():
        return "is missing"
    status = path.stat()
    if status.st_size != expected.size:
        return f"has {status.st_size} bytes instead of {expected.size}"
    return "" if hash_file(path) == expected.sha256 else "has other content"


def _names_of(hash_: str, names: dict[str, str]) -> tuple[str, ...]:
    return tuple(name for name, named in names.items() if named == hash_)


def _copy(folder: Path, names: Iterable[str], target: Path, progress: Callable[[str], None]) -> list[BundleFile]:
    target.mkdir()
    copied = []
    for name in names:
        progress(f"copying {name}")
        sha256, size = copy_hashed(folder / name, target / name, 0o600)
        copied.append(BundleFile(name, sha256, size, 0o600))
    return copied


def _described(folder: Path) -> tuple[BundleFile, ...]:
    """The files of a folder, with their modes made uniform."""
    found = []
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)
        found.append(BundleFile(path.name, hash_file(path), path.stat().st_size, 0o644))
    return tuple(found)


def _load_manifest(path: Path) -> BundleManifest:
    """Read manifest.json.

    Raises:
        HostError: it is missing, damaged or of a newer farm.
    """
    try:
        raw = path.read_bytes()
        version = json.loads(raw)["format"]
        if version != MANIFEST_FORMAT:
            raise HostError(
                f"{path} has format {version}, this farm reads {MANIFEST_FORMAT}",
                hint="use the farm that wrote it, or add the bundle again with this one",
            )
        return _MANIFEST.validate_json(raw)
    except FileNotFoundError as error:
        raise HostError(f"{path} is missing", hint=_REPAIR) from error
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror}", hint=_REPAIR) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # pydantic's ValidationError is a ValueError
        raise HostError(f"{path} is damaged", hint=_REPAIR, evidence=str(error)) from error
