"""A package says what it is, and whatever was done to its bytes is seen before anything of it is used."""

import hashlib
import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.bundle.model import Abi, Platform
from farm.bundle.versions import TvmVersions
from farm.common.errors import Code, UserError
from farm.compiler.model import Reference
from farm.compiler.package import (
    LIBRARY,
    MANIFEST,
    MODEL,
    REFERENCE,
    check_asked,
    check_fits,
    check_tvm,
    read_manifest,
    read_package,
    reference_npz,
    write_package,
)
from tests.support.errors import raises_code
from tests.support.packages import MADE
from tests.support.tars import sparse
from tests.unit.compiler.test_any_bytes import JSON

OUTPUT = np.array([[0x3F80, 0x4000]], np.uint16)  # 1.0 and 2.0 in bfloat16


def members(**more):
    import ml_dtypes

    wanted = OUTPUT.view(ml_dtypes.bfloat16)
    reference = Reference((wanted,), (wanted,), independent=True, by="onnx.reference")
    return {LIBRARY: b"\x7fELF library", REFERENCE: reference_npz([np.ones((1, 4), np.float32)], reference), **more}


def packed(**more):
    return write_package(MADE, members(**more))


def tar(*entries):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for about, content in entries:
            about.size = len(content) if about.isreg() else 0
            archive.addfile(about, io.BytesIO(content))
    return file.getvalue()


def entries_of(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(member, archive.extractfile(member).read()) for member in archive]


def with_manifest(change):
    (about, content), *others = entries_of(packed())
    said = json.loads(content)
    del said["check"]
    change(said)
    said["check"] = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return tar((about, json.dumps(said).encode()), *others)


def test_a_package_in_half_precision_has_what_this_host_computes_in_it():
    half = OUTPUT + 1
    reference = Reference((OUTPUT,), (OUTPUT,), independent=True, by="onnx.reference", precise=(half,))
    npz = reference_npz([np.ones((1, 4), np.float32)], reference)
    _, own = read_package(packed(**{REFERENCE: npz})).expected()
    assert np.array_equal(own.precise[0], half)
    assert read_package(packed()).expected()[1].precise == ()


def test_what_was_written_is_read(tmp_path):
    data = packed(**{MODEL: b"the model file"})
    package = read_package(data)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in members(model=b"the model file").items()}
    assert package.manifest == replace(MADE, sha256=hashes)
    assert (package.library, package.model, package.tuned) == (b"\x7fELF library", b"the model file", False)
    assert package.inputs[0].dtype == np.float32
    inputs, own = package.expected()
    assert {name: array.tolist() for name, array in inputs.items()} == {"x": [[1.0] * 4]}
    assert own.outputs[0].astype(float).tolist() == own.host_outputs[0].astype(float).tolist() == [[1.0, 2.0]]
    assert (own.independent, own.by, own.note) == (True, "onnx.reference", "")
    path = tmp_path / "net.farm.tar"
    path.write_bytes(data)
    assert read_manifest(path) == package.manifest == read_package(path).manifest
    assert write_package(MADE, members(model=b"the model file")) == data


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "extra.txt", LIBRARY])
def test_a_member_that_no_package_has_is_refused_and_nothing_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with raises_code(Code.BAD_PACKAGE, match="which no package has"):
        read_package(tar(*entries_of(packed()), (tarfile.TarInfo(name), b"x")))
    assert list(tmp_path.iterdir()) == []


def link(kind):
    about = tarfile.TarInfo(MODEL)
    about.type, about.linkname = kind, "/etc/passwd"
    return about, b""


LINKS = [link(kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda manifest, _, reference: (manifest, reference), r"lacks its member model\.so"),
        (lambda m, library, r: (m, (library[0], b"\x7fELF other lib"), r), r"model\.so is not what it was"),
        (
            lambda *members: (*members, (tarfile.TarInfo(MODEL), b"m")),
            "model is not what it was",
        ),  # not in the manifest
        *((lambda *members, entry=entry: (*members, entry), "is no plain file") for entry in LINKS),
    ],
)
def test_missing_and_changed_members_and_links_are_named(change, said):
    with raises_code(Code.BAD_PACKAGE, match=said):
        read_package(tar(*change(*entries_of(packed()))), "net.farm.tar")


def test_another_version_is_refused_with_both_named():
    with raises_code(Code.PACKAGE_MISMATCH, match="format 2, and this farm reads format 1"):
        read_package(with_manifest(lambda said: said.update(format=2)))
    made = TvmVersions(MADE.tvm, MADE.tvm_ffi)
    with raises_code(Code.PACKAGE_MISMATCH) as caught:
        check_tvm(MADE, TvmVersions("9.9", made.ffi))
    assert f"was compiled by {made}, and this toolchain has TVM 9.9 with FFI {made.ffi}" in caught.value.message
    check_tvm(MADE, made)
    check_tvm(MADE, TvmVersions(made.tvm, "9.9"))  # nobody has tried that FFI


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda said: said.update(abi="sparc"), "'abi' "),
        (lambda said: said.update(surprise=1), "'surprise' "),
        (lambda said: said["inputs"][0].update(dtype="wild"), r"a type that numpy does not know: .*'wild'"),
    ],
)
def test_a_damaged_manifest_is_told_with_its_field(change, said):
    with raises_code(Code.BAD_PACKAGE, match=said):
        read_package(with_manifest(change))


def test_a_package_fits_only_what_can_run_its_code():
    fits = (Abi.ARM64, Platform.ANDROID, "cpu", {"neon", "dotprod", "i8mm"})
    check_fits(MADE, *fits)
    foreign, unfit = Code.PACKAGE_FOREIGN, Code.PACKAGE_UNFIT
    for at, other, code, message in (
        (0, Abi.ARMV7, foreign, r"arm64-v8a \(android\), and this is armeabi-v7a \(android\)"),
        (1, Platform.LINUX, foreign, r"this is arm64-v8a \(linux-glibc\)"),
        (2, "opencl", unfit, "compiled for cpu, not for opencl"),
        (3, {"neon"}, foreign, "CPUs with dotprod, which this one is not known to have"),
    ):
        with raises_code(code, match=message):
            check_fits(MADE, *(other if i == at else value for i, value in enumerate(fits)))


def test_options_that_differ_from_the_packages_are_refused():
    check_asked(MADE, "float32", {}, {}, records=False)
    check_asked(MADE, "float16", {"x": (1, 4)}, {"x": "float32"}, records=False)
    for precision, shapes, dtypes, records, said in (
        ("float16_acc32", {}, {}, False, "--precision is float16"),
        ("float32", {"x": (2, 4)}, {}, False, r"--shape x is \(1, 4\)"),
        ("float32", {"z": (2,)}, {}, False, "--shape z is None"),
        ("float32", {}, {"x": "int8"}, False, "--dtype x is float32"),
        ("float32", {}, {}, True, "--records"),
    ):
        with raises_code(Code.PACKAGE_UNFIT, match=said):
            check_asked(MADE, precision, shapes, dtypes, records=records)


GOOD = packed()


def refused_or_whole(data):
    try:
        package = read_package(data)
    except UserError as error:
        return bool(error.message)
    return package == read_package(GOOD)


@given(st.binary(max_size=600) | st.builds(lambda end: GOOD[:end], st.integers(0, len(GOOD))))
def test_what_is_cut_or_no_package_is_refused_in_words(data):
    assert refused_or_whole(data)


@settings(max_examples=150)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_seen_or_changes_nothing(at, by):
    data = bytearray(GOOD)
    data[at] ^= by
    assert refused_or_whole(bytes(data))


def test_a_sparse_member_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(tarfile.TarFile, "extractfile", lambda *_: pytest.fail("it is being made"))
    for name in (LIBRARY, MANIFEST):
        data = tar((tarfile.TarInfo(MANIFEST), b""))[:512] + sparse(name, 3 << 30) + bytes(1024)
        with raises_code(Code.BAD_PACKAGE, match="is no plain file"):
            read_package(data)


def test_a_member_is_no_larger_than_the_archive():
    about = tarfile.TarInfo(LIBRARY)
    about.size = 3 << 30
    data = tar((tarfile.TarInfo(MANIFEST), b""))[:512] + about.tobuf(format=tarfile.USTAR_FORMAT) + bytes(1024)
    with raises_code(Code.BAD_PACKAGE, match="is cut short"):
        read_package(data)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"format":1,"x":' + b"9" * 9000 + b"}",
        b'{"format":1,"x":' + b"[" * 100_000 + b"}",
        b"[1]",
        b"1",
        b"\xff",
        b"",
    ],
    ids=["deep", "digits", "deep inside", "list", "number", "no text", "empty"],
)
def test_a_manifest_that_json_cannot_read_is_damaged(content, tmp_path):
    data = tar((tarfile.TarInfo(MANIFEST), content), (tarfile.TarInfo(LIBRARY), b"x"))
    path = tmp_path / "net.farm.tar"
    path.write_bytes(data)
    for source in (read_package, read_manifest):
        with raises_code(Code.BAD_PACKAGE, match=r"its package\.json is damaged"):
            source(path)


def test_a_manifest_that_names_fewer_inputs_than_the_reference_has_is_refused_before_a_phone_is_blamed():
    package = read_package(with_manifest(lambda said: said.update(inputs=[])))
    with raises_code(Code.BAD_PACKAGE, match="expected outputs cannot be read") as caught:
        package.expected()
    assert caught.value.evidence == "package.json does not name: input_0"


def checksummed(header, change):
    """A header of tar with `change` written over it, its checksum made to fit: what tarfile reads on with."""
    at, content = change
    header = bytearray(header)
    header[at : at + len(content)] = content
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header[:512])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.tuples(st.integers(0, 507), st.binary(min_size=1, max_size=24)), st.booleans())
def test_any_bytes_are_a_package_or_an_error(manifest, change, second):
    begin = tar((tarfile.TarInfo(MANIFEST), manifest))
    if second:
        data = begin[:1024] + checksummed(begin[:512], change) + begin[512:]
    else:
        data = checksummed(begin[:512], change) + begin[512:]
    with pytest.raises(UserError):
        read_package(data)


@settings(max_examples=100, deadline=None)
@given(
    JSON,
    st.sampled_from(["inputs", "outputs", "target", "created", "sha256", "abi", "name", "more"]),
)
def test_any_field_is_a_manifest_or_an_error(value, field):
    data = with_manifest(lambda said: said.update({field: value}))
    try:
        package = read_package(data)
    except UserError:
        return
    assert package.manifest.name
