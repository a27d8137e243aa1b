"""Spec files: `farm submit` reads one TOML file with one job, several, or a matrix of them (docs/scripts.md).

    kind = "bench"               # what stands here is every job's
    on = "android"
    [matrix]                     # each combination is a job (or, with `devices`, an array)
    model = ["small.onnx", "large.onnx"]
    target = ["cpu", "adreno"]

Instead of one job, `[[job]]` tables with keys of their own, each perhaps with a `[job.matrix]`. Paths are relative to
the file. Everything is checked before anything is uploaded; an error names the file and the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.client.model import Submitted, names_of
from farm.client.specs import check_models, checked_inputs, checked_labels, file_hash, spec_of_files
from farm.common.errors import Code, FarmError, UserError
from farm.common.files import checked_file, is_sha256
from farm.common.limits import MAX_JOBS_AT_ONCE
from farm.common.selector import Selector, did_you_mean
from farm.common.toml import parse_toml
from farm.compiler.onnx_data import whole
from farm.compiler.record_files import read_records
from farm.kinds import KINDS
from farm.model.specs import JobSpec, MissingOptionError, ModelSpec, fields_of, kind_named

if TYPE_CHECKING:
    from farm.client.asynchronous import AsyncClient

CHECKS: Mapping[str, Callable[[Path], object]] = {  # of artifacts, by their content
    "arrays": checked_inputs, "labels": checked_labels, "records": read_records,
}  # fmt: skip
OWN_KEYS = frozenset({"kind", "id", "matrix"})  # of a table, beside its spec's
CHECKED_AT_ONCE = 100  # specs in one question: a spec may have 10 kB, a message 2 MiB
KEY_CHARS = 64  # of a caller's key that are kept; a hash of the job follows


spec_file_error = partial(UserError, code=Code.BAD_SPEC_FILE)


@dataclass(frozen=True, slots=True)
class Planned:
    """One submission: a job, or an array when its spec says so. Its files are hashed, not uploaded."""

    name: str  # its matrix values, else its model or command
    spec: JobSpec
    files: Mapping[str, Path]  # by the key that names each
    id: str = ""  # the table's, for `after` of later ones
    after: tuple[str, ...] = ()  # tables of this file it waits for, by id

    def fingerprint(self) -> str:
        """A hash of everything that makes it this job."""
        content = json.dumps([self.spec.to_wire(), self.after], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def load(path: Path) -> tuple[Planned, ...]:
    """The submits of the file, in its order.

    Raises:
        UserError: it, or a file it names, cannot be read, or something in it is wrong; nothing was sent anywhere.
    """
    tree = _read(path)
    tables = list(_tables(path, tree))
    total = sum(table.combinations for table in tables)
    if total > MAX_JOBS_AT_ONCE:
        table = max(tables, key=lambda each: each.combinations)
        sizes = " x ".join(f"{len(values)} {key}" for key, values in table.matrix.items())
        raise table.error(
            f"matrix: {sizes or 'the file'} makes {total} jobs; at most {MAX_JOBS_AT_ONCE} are taken at once",
            hint="split the file",
        )
    hashes: dict[Path, str] = {}
    seen: dict[str, str] = {}  # id of a table -> where
    later = {table.id: table for table in tables if table.id}
    planned: list[Planned] = []
    passed: set[str] = set()
    for table in tables:
        unknown = [name for name in table.waits_for if name in later and name not in seen]
        if unknown:
            raise table.error(
                f"after: {unknown[0]!r} does not stand above it", hint="write the [[job]] with that id first"
            )
        for each in table.plan(hashes, seen):
            try:
                _check_files(each, passed)
            except UserError as error:
                raise table.error(f"{each.name}: {error.message}", hint=error.hint) from error
            planned.append(each)
        if table.id:
            if table.id in seen:
                raise table.error(f"id {table.id!r} is {seen[table.id]}'s already", hint="give each table its own")
            seen[table.id] = table.where or "the first table"
    return tuple(planned)


async def submit_all(
    client: AsyncClient, planned: Sequence[Planned], *, key: str = "", must_match: bool = False
) -> tuple[Submitted, ...]:
    """Upload each file once and submit in order.

    Args:
        client: the farm.
        planned: what `load` returned.
        key: submitted again with the same key, jobs that are the same are not added again; changed ones are.
        must_match: refuse selectors that no phone matches.

    Raises:
        FarmError: the farm would refuse one, which is named; nothing is submitted. Should it refuse one after that
            (another's job took the last place), those before it are submitted, and the hint names them.
    """
    entries = list(zip(planned, _keys_of(planned, key), strict=True))
    await _check(client, entries, must_match)
    await _upload(client, planned)
    submitted: list[Submitted] = []
    jobs_of: dict[str, tuple[str, ...]] = {}
    for each, own_key in entries:
        waits_for = tuple(itertools.chain.from_iterable(jobs_of[name] for name in each.after))
        spec = replace(each.spec, after=(*each.spec.after, *waits_for))
        try:
            done = await client.submit(spec, key=own_key, must_match=must_match)
        except FarmError as error:
            before = " ".join(itertools.chain.from_iterable(names_of(one) for one in submitted))
            raise _named(error, each, f"submitted already: {before}" if before else "") from error
        submitted.append(done)
        if each.id:
            jobs_of[each.id] = (*jobs_of.get(each.id, ()), *((done.array,) if done.array else done.ids))
    return tuple(submitted)


def _keys_of(planned: Sequence[Planned], key: str) -> Iterator[str]:
    """The key of each submission. The same job twice in one file is meant twice."""
    times: Counter[str] = Counter()
    for each in planned:
        fingerprint = each.fingerprint()
        times[fingerprint] += 1
        yield f"{key[:KEY_CHARS]}:{fingerprint[:32]}:{times[fingerprint]}" if key else ""


async def _check(client: AsyncClient, entries: Sequence[tuple[Planned, str]], must_match: bool) -> None:
    jobs = 0
    for start in range(0, len(entries), CHECKED_AT_ONCE):
        some = entries[start : start + CHECKED_AT_ONCE]
        specs = [(each.spec, own_key) for each, own_key in some]
        jobs, refused, error = await client.check(specs, must_match=must_match, besides=jobs)
        if error is not None:
            raise _named(error, some[refused][0], "nothing was submitted")


async def _upload(client: AsyncClient, planned: Sequence[Planned]) -> None:
    files = {getattr(each.spec, key): file for each in planned for key, file in each.files.items()}
    for sha256, file in files.items():
        if await client.put_file(await asyncio.to_thread(whole, file)) != sha256:
            raise UserError(f"{file} changed while it was submitted", hint="submit again")


def _named(error: FarmError, planned: Planned, so_far: str) -> FarmError:
    """The same error, of one entry of the file."""
    named = copy(error)  # with its code and exit code
    named.args = (f"{planned.name}: {error.message}",)
    named.hint = "; ".join(filter(None, (error.hint, so_far)))
    return named


@dataclass(frozen=True, slots=True)
class _Table:
    """One job of the file, or a matrix of them."""

    path: Path
    where: str  # "[[job]] 2"; empty when the file is one job
    cls: type[JobSpec]
    given: Mapping[str, Any]  # spec keys
    matrix: Mapping[str, Mapping[str, Any]]  # spec key -> name -> value
    id: str

    @property
    def combinations(self) -> int:
        return math.prod(len(values) for values in self.matrix.values())

    @property
    def waits_for(self) -> tuple[str, ...]:
        after = self.given.get("after", [])
        return tuple(each for each in after if isinstance(each, str)) if isinstance(after, list) else ()

    def error(self, message: str, *, hint: str = "") -> UserError:
        return _mistake(self.path, self.where, message, hint)

    def plan(self, hashes: dict[Path, str], ids: Mapping[str, str]) -> Iterator[Planned]:
        for names in itertools.product(*self.matrix.values()):
            chosen = {key: self.matrix[key][name] for key, name in zip(self.matrix, names, strict=True)}
            yield self._planned(", ".join(names), {**self.given, **chosen}, hashes, ids)

    def _planned(self, name: str, given: dict[str, Any], hashes: dict[Path, str], ids: Mapping[str, str]) -> Planned:
        files: dict[str, Path] = {}
        given = self.cls.completed(given)
        for key, content in _artifacts(self.cls).items():
            value = given.get(key)
            if not isinstance(value, str):
                continue
            if (path := self._file(key, value, hashes)) is not None:
                files[key] = path
            if content == "model":
                given.setdefault(key.replace("model", "name"), Path(value).name)
        after = given.get("after", [])
        here = [each for each in after if each in ids] if isinstance(after, list) else []
        if here:
            given["after"] = [each for each in after if each not in ids]
        try:
            spec = spec_of_files(self.cls, given, files, {key: hashes[path] for key, path in files.items()})
            Selector.parse(spec.on)
        except MissingOptionError as error:
            raise self.error(f"{self.cls.kind} needs {error.option!r}", hint=f"add: {error.option} = ...") from error
        except UserError as error:
            raise self.error(f"{name}: {error.message}" if name else error.message, hint=error.hint) from error
        shown = name or str(given.get("name") or given.get("command") or given.get("note") or self.cls.kind)
        return Planned(shown, spec, files, self.id, tuple(here))

    def _file(self, key: str, value: str, hashes: dict[Path, str]) -> Path | None:
        """The file that a key names; None: the value is the SHA-256 of an artifact that the farm has."""
        path = self.path.parent / value
        if is_sha256(value) and not path.exists():
            return None
        try:
            if path not in hashes:
                hashes[path] = file_hash(whole(checked_file(path)))
        except UserError as error:
            raise self.error(f"{key}: {error.message}", hint="paths are relative to the spec file") from error
        return path


def _artifacts(cls: type[JobSpec]) -> dict[str, str]:
    """Keys whose values are paths (or the SHA-256 of an artifact that the farm has), with the kind of content."""
    return {name: each.artifact.content for name, each in fields_of(cls).items() if each.artifact is not None}


def _check_files(planned: Planned, passed: set[str]) -> None:
    """Refuse files that are visibly wrong. `passed`: those that passed before."""
    spec = planned.spec
    if not isinstance(spec, ModelSpec):
        return
    artifacts = _artifacts(type(spec))
    checked_fields = {"kind", *artifacts, "shapes", "dtypes", "precision", "precision_b"}
    key = json.dumps({name: value for name, value in spec.to_wire().items() if name in checked_fields}, sort_keys=True)
    if key in passed:
        return
    for name, path in planned.files.items():
        if (check := CHECKS.get(artifacts[name])) is not None:
            check(path)
    check_models(spec, planned.files)
    passed.add(key)


def _mistake(path: Path, where: str, message: str, hint: str) -> UserError:
    return spec_file_error(": ".join(filter(None, (str(path), where, message))), hint=hint)


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(_text(path).encode())
    except ValueError as error:
        raise spec_file_error(
            f"{path} is not valid TOML: {error}", hint="texts stand in quotes; numbers, true and false do not"
        ) from error
    except OSError as error:
        raise spec_file_error(f"cannot read {path}: {error}", hint="give a TOML file: docs/scripts.md") from error


def _text(path: Path) -> str:
    data = checked_file(path).read_bytes()
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode("utf-8")
        if "\0" not in text:  # a small model's bytes may be UTF-8, too
            return text
    raise spec_file_error(
        f"{path} is no TOML file: it is no UTF-8 text",
        hint=f"of a model: farm bench {shlex.quote(str(path))} --on SELECTOR; spec files: docs/scripts.md",
    )


def _tables(path: Path, tree: Mapping[str, Any]) -> Iterator[_Table]:
    shared = {key: value for key, value in tree.items() if key != "job"}
    jobs = tree.get("job", [{}])
    if not isinstance(jobs, list) or not all(isinstance(each, dict) for each in jobs) or not jobs:
        raise _mistake(path, "", "job is not a list of tables", "write [[job]] above each job's keys")
    if "job" not in tree and "kind" not in tree:  # [[jobs]] or `knd`: named before the missing kind
        if {"command", "output"} <= tree.keys():
            hint = f"farm program run {shlex.quote(str(path))} --on SELECTOR; spec files: docs/scripts.md"
            raise _mistake(path, "", "this is the description of a program, not a spec file", hint)
        _refuse_unknown(path, "", shared, OWN_KEYS.union({"job", "kind"}, *map(_keys, KINDS.values())), "a spec file")
    kinds = [_kind(path, _where(tree, i), {**shared, **each}) for i, each in enumerate(jobs)]
    known = OWN_KEYS.union(*map(_keys, kinds)) | {"job"}
    _refuse_unknown(path, "", shared, known, kinds[0].kind if "job" not in tree else "a spec file")
    if "job" in tree and "id" in shared:
        raise _mistake(path, "", "id stands above every [[job]]", "give each [[job]] its own")
    common_matrix = _matrix(path, "", shared.get("matrix", {}), known - OWN_KEYS)
    for i, (cls, own) in enumerate(zip(kinds, jobs, strict=True)):
        where = _where(tree, i)
        _refuse_unknown(path, where, own, _keys(cls) | OWN_KEYS, cls.kind)
        matrix = {
            **{key: values for key, values in common_matrix.items() if key in _keys(cls) and key not in own},
            **_matrix(path, where, own.get("matrix", {}), _keys(cls)),
        }
        given = {key: value for key, value in {**shared, **own}.items() if key in _keys(cls)}
        table = _Table(path, where, cls, given, matrix, _id(path, where, own.get("id", shared.get("id", ""))))
        twice = sorted(matrix.keys() & own.keys() | common_matrix.keys() & shared.keys())
        if twice:
            raise table.error(f"{twice[0]!r} is given in the matrix and outside it", hint="give it once")
        yield table


def _where(tree: Mapping[str, Any], index: int) -> str:
    return f"[[job]] {index + 1}" if "job" in tree else ""


def _kind(path: Path, where: str, table: Mapping[str, Any]) -> type[JobSpec]:
    kind = table.get("kind")
    if kind is None:
        others = ", ".join(each for each in KINDS if each != "bench")
        raise _mistake(path, where, "there is no kind", f'add kind = "bench" (or {others})')
    try:
        return kind_named(KINDS, kind)
    except UserError as error:
        raise _mistake(path, where, error.message, error.hint) from None


def _keys(cls: type[JobSpec]) -> frozenset[str]:
    return frozenset(fields_of(cls))


def _refuse_unknown(path: Path, where: str, table: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known, f"keys: {', '.join(sorted(known))}")
            raise _mistake(path, where, f"{what} has no key {key!r}", hint)


def _matrix(path: Path, where: str, matrix: object, known: frozenset[str]) -> dict[str, Mapping[str, Any]]:
    """Each key's values by name: a table's own names, or the values themselves."""
    if not isinstance(matrix, dict):
        raise _mistake(path, where, "matrix is no table", '[matrix], then lines like target = ["cpu", "adreno"]')
    _refuse_unknown(path, where, matrix, known, "a matrix")
    named: dict[str, Mapping[str, Any]] = {}
    for key, values in matrix.items():
        if isinstance(values, dict) and values:
            named[key] = values
        elif isinstance(values, list) and values:
            named[key] = {_name(key, value): value for value in values}
            if len(named[key]) < len(values):
                raise _mistake(path, where, f"matrix: {key} has a value twice", "give each once")
        else:
            hint = f"{key} = [...], or {key} = {{name = value, ...}}"
            raise _mistake(path, where, f"matrix: {key} is no list of values", hint)
    return named


def _name(key: str, value: object) -> str:
    return str(value) if isinstance(value, str) and key in ("model", "on", "target", "name") else f"{key}={value}"


def _id(path: Path, where: str, given: object) -> str:
    if not isinstance(given, str):
        raise _mistake(path, where, "id is no text", 'id = "warm-up"')
    return given
