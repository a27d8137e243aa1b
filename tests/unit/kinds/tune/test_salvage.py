"""What is kept of a tuning that came to no end of its own: its latest attempt's trials, wherever they are."""

import json
import os
import re

import pytest

from farm.common.errors import HostError
from farm.compiler.record_files import packed, read_records, write_records
from farm.compiler.records import RECORDS
from farm.kinds.tune.run import MODEL, TUNING
from farm.kinds.tune.salvage import main
from tests.unit.compiler.test_records import LLVM, set_of


class Daemon:
    """Artifacts and kept sets."""

    def __init__(self):
        self.kept = []

    def artifact(self, sha256):
        assert sha256 == "prior"
        return packed(set_of(("a", 9, 0.001), ("other", 9, 0.001)))

    def put_artifact(self, data):
        self.put = data
        return "put"

    def keep_records(self, **fields):
        self.kept.append(fields)
        return 7

    def log(self, text): ...


def attempt(cache, toolchain, model, at_s, *tiles):
    """A folder of job j1, as the worker of that toolchain left it."""
    folder = cache / toolchain / TUNING / f"{model}-llvm" / "j1"
    folder.mkdir(parents=True)
    if tiles:
        write_records(set_of(*(("a", tile, 0.002) for tile in tiles)), folder)
    (folder / MODEL).write_text(json.dumps({"model": model, "target": LLVM}))
    os.utime(folder / MODEL, (at_s, at_s))
    return folder


def salvaged(cache, daemon, prior=None):
    payload = {"job": "j1", "name": "net.onnx", "cache": str(cache / "default"), "prior": prior}
    return main(payload, daemon)


@pytest.mark.parametrize(("prior", "records"), [(None, 2), ("prior", 3)])
def test_the_latest_attempt_is_kept_under_what_it_tuned_for(tmp_path, prior, records):
    attempt(tmp_path, "default", "old", 100.0, 1)
    attempt(tmp_path, "newer", "new", 200.0, 1, 2)  # its phone, whose toolchain that is, is gone
    attempt(tmp_path, "third", "begun", 300.0)  # nothing measured yet
    daemon = Daemon()
    assert salvaged(tmp_path, daemon, prior) == {"trials": 2, "version": 7}
    [kept] = daemon.kept
    assert (kept["model"], kept["name"], kept["target"], kept["artifact"]) == ("new", "net.onnx", LLVM, "put")
    assert kept["records"] == records == len(read_records(daemon.put).set.records)


def test_where_nothing_was_measured_nothing_is_kept(tmp_path):
    daemon = Daemon()
    assert salvaged(tmp_path, daemon) == {"trials": 0}
    folder = attempt(tmp_path, "default", "begun", 100.0)
    assert salvaged(tmp_path, daemon) == {"trials": 0}
    write_records(set_of(), folder)
    assert (folder / RECORDS).exists()
    assert salvaged(tmp_path, daemon) == {"trials": 0}
    assert daemon.kept == []


@pytest.mark.parametrize("text", ["", '{"model": "new"', "[" * 100_000, "[]", '{"model": "new"}'])
def test_a_torn_note_of_the_model_is_named(tmp_path, text):
    folder = attempt(tmp_path, "default", "new", 100.0, 1)
    (folder / MODEL).write_text(text)
    with pytest.raises(HostError, match=re.escape(f"{folder / MODEL} is damaged")):
        salvaged(tmp_path, Daemon())
