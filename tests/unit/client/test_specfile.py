"""Spec files: what they mean, and that every mistake names file, table and the nearest key."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from farm.client.specfile import _named, load
from farm.common.errors import Code, NoPhoneError, UserError
from farm.compiler.package import write_package
from farm.compiler.record_files import packed
from farm.compiler.records import RecordSet
from tests.support.errors import raises_code
from tests.support.packages import MADE
from tests.support.tiny_model import tiny_onnx


@pytest.fixture
def write(tmp_path):
    for name in ("small.onnx", "large.onnx"):
        (tmp_path / name).write_bytes(tiny_onnx(doc=name))

    def write(text):
        path = tmp_path / "jobs.toml"
        path.write_text(text)
        return path

    return write


SHELL = 'kind = "shell"\ncommand = "id"\n'
ALL = f'{SHELL}devices = "all"\n'
BENCH = 'kind = "bench"\nmodel = "small.onnx"\n'


def sha256(name):
    return hashlib.sha256(tiny_onnx(doc=name)).hexdigest()


def test_one_job(write):
    [planned] = load(write('kind = "bench"\nmodel = "small.onnx"\non = "android"\ndevices = "all"\nrepeat = 7\n'))
    spec = planned.spec
    assert (spec.kind, spec.model, spec.name) == ("bench", sha256("small.onnx"), "small.onnx")
    assert (spec.devices, spec.repeat, planned.name) == ("all", 7, "small.onnx")
    assert [path.name for path in planned.files.values()] == ["small.onnx"]


def test_a_matrix_is_every_combination_named_by_its_values(write):
    planned = load(
        write(
            'kind = "bench"\n[matrix]\nmodel = ["small.onnx", "large.onnx"]\ntarget = ["cpu", "adreno"]\n'
            'on = {flagship = "soc=sm8650", old = "soc=sdm845"}\n'
        )
    )
    assert [(each.name, each.spec.name, each.spec.target, each.spec.on) for each in planned][:3] == [
        ("small.onnx, cpu, flagship", "small.onnx", "cpu", "soc=sm8650"),
        ("small.onnx, cpu, old", "small.onnx", "cpu", "soc=sdm845"),
        ("small.onnx, adreno, flagship", "small.onnx", "adreno", "soc=sm8650"),
    ]
    assert len({each.fingerprint() for each in planned}) == len(planned) == 8


def test_tables_share_what_stands_above_them_and_wait_for_one_another(write):
    tables = f'[[job]]\n{SHELL}id = "warm"\n[[job]]\n{BENCH}after = ["warm", "job-77"]\n[job.matrix]\nrepeat = [1, 2]\n'
    first, second, third = load(write(f'on = "android"\ntarget = "adreno"\n{tables}'))
    assert (second.spec.target, second.spec.on, first.spec.on) == ("adreno", "android", "android")
    assert (first.spec.kind, first.id) == ("shell", "warm")
    assert (second.after, second.spec.after) == (("warm",), ("job-77",))
    assert [second.name, third.name] == ["repeat=1", "repeat=2"]


def test_a_package_brings_its_target_and_records_are_files(write, tmp_path):
    package = write_package(replace(MADE, device="opencl"), {"model.so": b"x", "reference.npz": b"x"})
    (tmp_path / "net.farm.tar").write_bytes(package)
    (tmp_path / "tuned.tar").write_bytes(packed(RecordSet({}, (), {}, {})))
    [first, second] = load(
        write(
            'kind = "bench"\non = "android"\n[[job]]\nmodel = "net.farm.tar"\n'
            '[[job]]\nmodel = "small.onnx"\nrecords = "tuned.tar"\nshapes = {x = [1, 4, 8, 8]}\nprecision = "float16"\n'
        )
    )
    assert (first.spec.target, second.spec.target) == ("opencl", "cpu")
    assert second.spec.shapes == {"x": (1, 4, 8, 8)}
    assert {path.name for path in second.files.values()} == {"small.onnx", "tuned.tar"}


def damaged():
    return bytearray(write_package(MADE, {"model.so": b"library", "reference.npz": b"x"})).replace(
        b"library", b"liberty"
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('model = "open.onnx"', "leaves dimension 0 ('n') open"),
        ('model = "open.onnx"\nshapes = {y = [1]}', "'y', which is no input of open.onnx"),
        ('model = "open.onnx"\ninputs = "wrong.npz"', "input 'x' has shape 2x3, the model wants nx4x8x8"),
        ('model = "bad.farm.tar"', "SHA-256 differs"),
        ('model = "small.onnx"\nrecords = "small.onnx"', "small.onnx: no folder and no .tar of tuning records"),
        ('model = "small.onnx"\nkind = "run"\ninputs = "small.onnx"', "is no .npz file"),
        ('model = "good.farm.tar"\nkind = "tune"', "is a package, compiled already"),
    ],
)
def test_files_that_will_not_do_are_found_before_anything_is_sent(write, tmp_path, lines, said):
    (tmp_path / "open.onnx").write_bytes(tiny_onnx(batch="n"))
    np.savez(tmp_path / "wrong.npz", x=np.zeros((2, 3), np.float32))
    np.savez(tmp_path / "right.npz", x=np.zeros((2, 4, 8, 8), np.float32))
    (tmp_path / "bad.farm.tar").write_bytes(damaged())
    (tmp_path / "good.farm.tar").write_bytes(write_package(MADE, {"model.so": b"x", "reference.npz": b"x"}))
    text = f'on = "android"\n{lines}\n' + ("" if "kind" in lines else 'kind = "bench"\n')
    with raises_code(Code.BAD_SPEC_FILE, match=re.escape(said)):
        load(write(text))
    [fits] = load(write('on = "android"\nkind = "bench"\nmodel = "open.onnx"\ninputs = "right.npz"\n'))
    assert fits.spec.name == "open.onnx"


def test_a_file_may_leave_out_what_the_commands_do(write):
    compared, tuned = load(
        write(
            'on = "android"\nmodel = "small.onnx"\n[[job]]\nkind = "compare"\nprecision_b = "float16"\n'
            '[[job]]\nkind = "tune"\n'
        )
    )
    assert (compared.spec.model_b, compared.spec.name_b) == (sha256("small.onnx"), "small.onnx")
    assert tuned.spec.trials == 1000


def test_an_artifact_may_be_named_by_its_hash(write):
    [planned] = load(write(f'kind = "run"\nmodel = "{"ab" * 32}"\nname = "net"\non = "android"\n'))
    assert (planned.spec.model, planned.files) == ("ab" * 32, {})


def test_a_mistake_names_the_file_the_place_and_the_way_out(write, snapshot, tmp_path):
    said = []
    for text in Path(__file__).with_name("spec_mistakes.txt").read_text().split("\n---\n"):
        path = write(f"{text}\n")
        with raises_code(Code.BAD_SPEC_FILE) as raised:
            load(path)
        told = f"{raised.value.message}\n  {raised.value.hint}"
        assert str(path) in told
        said.append(f"{text.rstrip()}\n> {told}".replace(str(tmp_path), "TMP"))
    snapshot("\n\n".join(said))


def test_a_matrix_that_is_too_large_is_refused_before_its_files_are_read(write):
    numbers = list(range(1, 41))
    with raises_code(Code.BAD_SPEC_FILE, match=r"40 repeat x 26 number makes 1040 jobs; at most 1000") as raised:
        load(
            write(
                'kind = "bench"\nmodel = "absent.onnx"\non = "x"\n'
                f"[matrix]\nrepeat = {numbers}\nnumber = {numbers[:26]}\n"
            )
        )
    assert raised.value.hint == "split the file"


def test_a_file_that_cannot_be_read(tmp_path):
    for name, data in (("latin.toml", b"kind = '\xe4'"), ("net.onnx", b"\x08\x07\x12\0")):
        (tmp_path / name).write_bytes(data)
        with raises_code(Code.BAD_SPEC_FILE, match=f"{name} is no TOML file: it is no UTF-8 text") as raised:
            load(tmp_path / name)
        assert f"farm bench {tmp_path / name} --on SELECTOR" in raised.value.hint
    (tmp_path / "deep.toml").write_text("on = " + "[" * 30_000)
    with raises_code(Code.BAD_SPEC_FILE, match="brackets in brackets"):
        load(tmp_path / "deep.toml")
    with pytest.raises(UserError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "absent.toml")


def test_submitted_with_a_key_only_what_changed_is_new(write, tmp_path, daemon, client):
    text = 'kind = "bench"\non = "android"\n[matrix]\nmodel = ["small.onnx", "large.onnx"]\n'
    first = client.submit_file(write(text), key="nightly")
    assert [each.ids for each in client.submit_file(write(text), key="nightly")] == [each.ids for each in first]
    (tmp_path / "large.onnx").write_bytes(tiny_onnx(batch=3))
    changed = client.submit_file(write(text), key="nightly")
    assert (changed[0].ids, len(daemon.jobs)) == (first[0].ids, 3)
    assert client.submit_file(write(text))[0].ids != first[0].ids
    assert daemon.calls.count("job.submit") == 8


def test_nothing_is_submitted_when_one_entry_would_be_refused(write, daemon, client):
    daemon.refused.add("absent")
    with pytest.raises(NoPhoneError, match=r"^absent: no phone matches") as raised:
        client.submit_file(write(f'{ALL}[matrix]\non = ["android", "absent"]\n'))
    assert (raised.value.hint, daemon.submissions) == ("nothing was submitted", [])


def test_the_error_of_one_entry_keeps_its_code():
    error = _named(UserError("too many", Code.QUOTA_EXCEEDED, hint="wait"), SimpleNamespace(name="a"), "nothing sent")
    assert (error.message, error.code, error.exit_code) == ("a: too many", "quota_exceeded", 5)
    assert error.hint == "wait; nothing sent"


def test_what_was_submitted_before_a_late_refusal_is_told(write, daemon, client):
    with pytest.raises(NoPhoneError, match=r"^nothing: no phone matches") as raised:
        client.submit_file(write(f'{SHELL}[matrix]\non = ["android", "nothing"]\n'), must_match=True)
    assert f"submitted already: {next(iter(daemon.jobs))}" in raised.value.hint


def test_the_same_job_twice_in_one_file_is_meant_twice(write, client):
    first, second = client.submit_file(write(f'[[job]]\n{SHELL}on = "android"\n' * 2), key="k")
    assert first.ids != second.ids


def test_tables_that_wait_for_others_get_their_ids(write, daemon, client):
    text = f'on = "android"\n[[job]]\n{ALL}id = "warm"\n[[job]]\n{BENCH}after = ["warm", "job-77"]\n'
    warm, bench = client.submit_file(write(text))
    assert (daemon.submissions[1]["spec"]["after"], len(bench.jobs)) == (["job-77", warm.array], 1)
