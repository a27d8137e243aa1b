"""Which TVM and which FFI something has, and which of them are known to work together.

TVM's protocol names one version since 2020, so neither side of a session notices that the other one's TVM or FFI lays
out its structures otherwise. What was tried stands in data/versions.tsv (written by `python -m benchmarks versions`),
and `verdict` looks there. data/builds.tsv has the build ids by which a library says which wheel it is from.

Pure, but for `known_trials`, `known_builds` and `installed_versions`, which read files. Standard library only: a
toolchain's interpreter imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import cache
from importlib import metadata
from pathlib import Path

from farm.common.errors import Code, UserError

_DATA = Path(__file__).parent / "data"
TRIALS, BUILDS = _DATA / "versions.tsv", _DATA / "builds.tsv"
TVM_PACKAGE, FFI_PACKAGE = "apache-tvm", "apache-tvm-ffi"
ALONE_HINT = "install a TVM and an FFI that are known to work together: docs/bundles.md"
PAIR_HINT = "take both from the same TVM and FFI: `farm bundle build` does; docs/bundles.md has what is known to work"
_SILENT = "neither the libraries nor bundle.toml (tvm_version, ffi_version) say which TVM and FFI they are of"


@dataclass(frozen=True, slots=True)
class TvmVersions:
    """The TVM and the FFI of one interpreter, bundle or package; "" is unknown."""

    tvm: str = ""
    ffi: str = ""

    def __str__(self) -> str:
        return f"TVM {self.tvm or '?'} with FFI {self.ffi or '?'}"

    def admits(self, other: TvmVersions) -> bool:
        """Whether it may be the other one: what is unknown may be anything."""
        return self.tvm in ("", other.tvm) and self.ffi in ("", other.ffi)


UNKNOWN_VERSIONS = TvmVersions()


def installed_versions(tvm: str = "") -> TvmVersions:
    """Those of this interpreter; `tvm`: what its TVM says where no package does."""
    return of_packages({each: _installed(each) for each in (TVM_PACKAGE, FFI_PACKAGE)}, tvm)


def of_packages(packages: Mapping[str, str], tvm: str = "") -> TvmVersions:
    """Those of an interpreter, from the versions of its packages; `tvm`: what its TVM says where no package does."""
    return TvmVersions(packages.get(TVM_PACKAGE) or tvm, packages.get(FFI_PACKAGE, ""))


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


class TrialKind(StrEnum):
    """What was tried."""

    ENVIRONMENT = "environment"  # TVM with that FFI in one process: compiling, running there, pickling, layouts
    SERVER = "server"  # TVM's runtime with that FFI as an RPC server: it starts
    SESSION = "session"  # such a client with a server of `other`
    PACKAGE = "package"  # a library that it compiled, with a server of `other` and a client that fits that


class TrialResult(StrEnum):
    """What came out."""

    WORKS = "works"
    REFUSED = "refused"  # an error that says so
    WRONG = "wrong"  # wrong numbers, and no error
    CRASH = "crash"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class VersionTrial:
    """One row of data/versions.tsv."""

    kind: TrialKind
    versions: TvmVersions
    other: TvmVersions  # unknown twice for ENVIRONMENT and SERVER
    result: TrialResult
    detail: str = ""  # the step that failed, and how

    def line(self) -> str:
        """The row as text."""
        cells = (self.kind, *astuple(self.versions), *astuple(self.other), self.result, self.detail)
        return "\t".join(cell.replace("\t", " ").replace("\n", " ") or "-" for cell in cells)


TITLES = ("kind", "tvm", "ffi", "other_tvm", "other_ffi", "result", "detail")


def parse_trials(lines: Iterable[str]) -> Iterator[VersionTrial]:
    """The rows of data/versions.tsv.

    Raises:
        ValueError: a row is none.
    """
    for line in _rows(lines, TITLES):
        kind, tvm, ffi, other_tvm, other_ffi, result, detail = line
        versions, other = TvmVersions(tvm, ffi), TvmVersions(other_tvm, other_ffi)
        yield VersionTrial(TrialKind(kind), versions, other, TrialResult(result), detail)


class Compatibility(StrEnum):
    """Whether two sides fit."""

    OK = "ok"
    UNKNOWN = "unknown"  # never tried: a warning
    BROKEN = "broken"  # known not to work: a refusal


@dataclass(frozen=True, slots=True)
class VersionVerdict:
    """Whether two sides fit, and why not."""

    compatibility: Compatibility
    reason: str = ""  # "" if they fit

    @property
    def broken(self) -> bool:
        """Whether it is to be refused."""
        return self.compatibility is Compatibility.BROKEN

    @property
    def unknown(self) -> bool:
        """Whether it is worth a warning."""
        return self.compatibility is Compatibility.UNKNOWN


_OK = VersionVerdict(Compatibility.OK)
_FAILED = {
    TrialResult.REFUSED: "fails",
    TrialResult.WRONG: "gives wrong numbers",
    TrialResult.CRASH: "crashes",
    TrialResult.HANG: "hangs",
}


def verdict(
    client: TvmVersions, server: TvmVersions, trials: Sequence[VersionTrial], kind: TrialKind = TrialKind.SESSION
) -> VersionVerdict:
    """Whether a client, or with TrialKind.PACKAGE what it compiled, works with a server.

    Broken if every trial that may have been of the two failed, fine if each worked or if both sides are the same and
    nobody has seen it fail, else unknown.
    """
    for alone in (alone_verdict(client, trials), alone_verdict(server, trials, TrialKind.SERVER)):
        if alone.broken and kind is TrialKind.SESSION:
            return alone
    found = [
        each for each in trials if each.kind is kind and client.admits(each.versions) and server.admits(each.other)
    ]
    failed = [each for each in found if each.result is not TrialResult.WORKS]
    if found and len(failed) == len(found):
        how = f"{_FAILED[failed[0].result]} ({failed[0].detail})"
        return VersionVerdict(Compatibility.BROKEN, f"{client} {_WITH[kind]} {server} {how}")
    if not failed and (found or (client == server and client.tvm)):
        return _OK
    why = "which of several FFIs it is decides" if found else "nobody has tried it"
    return VersionVerdict(Compatibility.UNKNOWN, f"{client} {_WITH[kind]} {server}: {why}")


_WITH = {TrialKind.SESSION: "talking to", TrialKind.PACKAGE: "compiled it, and that code run by"}


def checked(client: TvmVersions, server: TvmVersions, what: str, hint: str, kind: TrialKind = TrialKind.SESSION) -> str:
    """A warning where it is unknown whether two sides fit; "": they do. `what` names the two, `hint` the remedy.

    Raises:
        UserError: they are known not to fit.
    """
    return _warning(verdict(client, server, known_trials(), kind), what, hint)


def checked_alone(versions: TvmVersions, what: str) -> str:
    """A warning where a TVM was never tried with that FFI in one process; "": it works.

    Raises:
        UserError: it is known not to work.
    """
    return _warning(alone_verdict(versions, known_trials()), what, ALONE_HINT)


def _warning(found: VersionVerdict, what: str, hint: str) -> str:
    if found.broken:
        raise UserError(f"{what} cannot work: {found.reason}", Code.VERSIONS_UNFIT, hint=hint)
    return f"whether {what} works is not known: {found.reason}" if found.unknown else ""


def bundle_versions(
    name: str, stated: TvmVersions, toolchain: str, compiler: TvmVersions
) -> tuple[TvmVersions, tuple[str, ...]]:
    """The versions of a bundle, with warnings: those that it states, else those of its toolchain.

    Raises:
        UserError: they are known not to work with the toolchain's.
    """
    versions = TvmVersions(stated.tvm or compiler.tvm, stated.ffi or compiler.ffi)
    doubt = checked(compiler, versions, f"bundle {name} with toolchain {toolchain}", PAIR_HINT)
    silent = "" if stated.tvm and stated.ffi else f"{_SILENT}: taken to be {versions}, as in toolchain {toolchain}"
    return versions, tuple(filter(None, (silent, doubt)))


def alone_verdict(
    versions: TvmVersions, trials: Sequence[VersionTrial], kind: TrialKind = TrialKind.ENVIRONMENT
) -> VersionVerdict:
    """Whether a TVM works with that FFI in one process (TrialKind.SERVER: of a phone); unknown if never tried."""
    found = [each for each in trials if each.kind is kind and versions.admits(each.versions)]
    failed = [each for each in found if each.result is not TrialResult.WORKS]
    if found and len(failed) == len(found):
        return VersionVerdict(Compatibility.BROKEN, f"{versions} {_FAILED[failed[0].result]} ({failed[0].detail})")
    return _OK if found and not failed else VersionVerdict(Compatibility.UNKNOWN, f"nobody has tried {versions}")


@dataclass(frozen=True, slots=True)
class KnownBuild:
    """A library of wheels, by its GNU build id. Post-releases often have the libraries of the release before them."""

    package: str
    library: str
    versions: tuple[str, ...]  # whose wheels have it, the newest last


BUILD_TITLES = ("build_id", "package", "version", "machine", "library")


def parse_builds(lines: Iterable[str]) -> dict[str, KnownBuild]:
    """The builds of data/builds.tsv by build id.

    Raises:
        ValueError: a row is none.
    """
    found: dict[str, KnownBuild] = {}
    for build_id, package, version, _machine, library in _rows(lines, BUILD_TITLES):
        known = found.get(build_id, KnownBuild(package, library, ()))
        found[build_id] = KnownBuild(package, library, (*known.versions, version))
    return found


@cache
def known_trials() -> tuple[VersionTrial, ...]:
    """What was tried, as shipped with farm."""
    return tuple(parse_trials(TRIALS.read_text("utf-8").splitlines()))


@cache
def known_builds() -> Mapping[str, KnownBuild]:
    """The build ids, as shipped with farm."""
    return parse_builds(BUILDS.read_text("utf-8").splitlines())


def _rows(lines: Iterable[str], titles: tuple[str, ...]) -> Iterator[list[str]]:
    """The cells of each line that is no comment; the first is `titles`."""
    rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
    if not rows or tuple(rows[0]) != titles:
        raise ValueError(f"the first line must be {' '.join(titles)}")
    for row in rows[1:]:
        if len(row) != len(titles):
            raise ValueError(f"{len(row)} cells in place of {len(titles)}: {row[:3]}")
        yield ["" if cell == "-" else cell for cell in row]
