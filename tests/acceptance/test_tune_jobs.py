"""`farm tune`, `farm records` and packages: through a whole farm with one virtual phone, on this host, in a script."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from farm import Client
from farm.compiler.record_files import read_records
from tests.support.alone import alone, package_for_here
from tests.support.pages import ROOT, blocks
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import answer

TRIALS = 16
PATIENT = ("--candidate-timeout", "2m")  # the phone's processor is this host's: 5 s at load 27

pytestmark = pytest.mark.farm("oneplus-12")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("tune")
    (found / "dense.onnx").write_bytes(dense_onnx())
    return found


@pytest.fixture(scope="module")
def tuned(whole, folder):
    """The result of one run by the command."""
    done = whole.farm(
        "tune", str(folder / "dense.onnx"), "--on", "android", "--trials", str(TRIALS), "--cost-model", "random",
        *PATIENT, "-o", str(folder / "dense.farm.tar"), "--plot", str(folder / "curve.svg"), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["results"][0]


def beats_tvm(tuned):
    """Whether a candidate of the one task was faster than TVM's own schedule, on whatever this host is at."""
    [task] = tuned["tasks"]
    return bool(task["best_ms"] < task["default_ms"])


def test_exactly_so_many_trials_are_measured_kept_and_compiled_with(farm, folder, tuned):
    assert (tuned["trials"], tuned["ended"]) == (TRIALS, "trials")
    assert sum(task["trials"] for task in tuned["tasks"]) == TRIALS
    assert tuned["speedup"]["low"] <= tuned["speedup"]["times"] <= tuned["speedup"]["high"]
    assert tuned["numerics"]["against_reference"]["ok"]
    assert tuned["compile"]["tuned"] is beats_tvm(tuned)
    [task] = tuned["tasks"]
    assert task["kept_own"] is not beats_tvm(tuned)
    used_ms = min(task["best_ms"], task["default_ms"])
    assert tuned["estimate_s"] == pytest.approx(task["weight"] * used_ms / 1e3)
    assert tuned["curve"][-1][2] == tuned["estimate_s"]
    assert tuned["curve"] == sorted(tuned["curve"])
    assert [phone["trials"] for phone in tuned["phones"]] == [TRIALS]
    assert "<path" in (folder / "curve.svg").read_text()
    ran = farm.farm("run", str(folder / "dense.farm.tar"), "--on", "android", "--json")
    assert ran.returncode == 0, ran.stderr


def test_the_records_are_listed_shown_exported_and_a_prior(farm, folder, tuned):
    [row] = json.loads(farm.farm("records", "list", "--json").stdout)["sets"]
    assert (row["name"], row["version"], row["records"]) == ("dense.onnx", 1, TRIALS)
    shown = farm.farm("records", "show", "dense.onnx")
    assert f"records   {TRIALS} ({TRIALS} by {tuned['device']})" in shown.stdout
    assert farm.farm("records", "export", str(row["set"]), "-o", str(folder / "set")).returncode == 0
    from tvm.s_tir import meta_schedule as ms

    assert len(ms.database.JSONDatabase(work_dir=str(folder / "set"))) == TRIALS
    assert farm.farm("records", "best", "dense.onnx", "-o", str(folder / "best.tar")).returncode == 0
    assert len(read_records(folder / "best.tar").set.records) == int(beats_tvm(tuned))
    merged = farm.farm("records", "merge", str(folder / "set"), str(folder / "best.tar"), "-o", str(folder / "all"))
    assert merged.stdout.startswith(f"{TRIALS} records of 1 task")
    assert farm.farm("records", "merge", "dense.onnx", str(row["set"])).stdout.endswith("kept as version 2\n")
    again = farm.farm(
        "tune", str(folder / "dense.onnx"), "--on", "android", "--trials", "2", "--cost-model", "random",
        "--prior", "dense.onnx", "--seed", "7", *PATIENT,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "2 of 2" in again.stdout
    assert "version 3 of dense.onnx" in again.stdout
    newest = json.loads(farm.farm("records", "list", "--json").stdout)["sets"][0]
    assert newest["records"] == TRIALS + 2


def test_a_tuning_that_is_cancelled_keeps_what_it_measured(farm, folder):
    with Client(farm.socket) as client:
        spec = client.spec(
            "tune", model=folder / "dense.onnx", on="android", trials=100_000, cost_model="random", seed=3
        )
        submitted = client.submit(spec)
        for event in client.watch(submitted):
            if event is not None and event.data.get("tuning", {}).get("trials", 0) >= 3:
                break
        client.cancel(submitted)
        [outcome] = client.wait(submitted)
    assert outcome.job.state == "cancelled"
    newest = json.loads(farm.farm("records", "list", "--json").stdout)["sets"][0]
    assert newest["job"] == outcome.job.id
    assert newest["records"] >= 3
    words = f"{newest['records']} trials were kept: --prior {newest['set']} continues from them"
    assert words in farm.farm("job", "show", outcome.job.id).stdout


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--prior", "nobody.onnx"], 2, "there are no records of a model 'nobody.onnx'"),
        (["--plot", "curve.png"], 2, "curve.png is no .svg"),
    ],
)
def test_what_is_refused(farm, folder, options, code, said):
    done = farm.farm("tune", str(folder / "dense.onnx"), "--on", "android", *options)
    assert done.returncode == code, done.stderr
    assert said in done.stderr


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return package_for_here(tmp_path_factory.mktemp("models"))


def test_a_package_runs_on_this_host_and_is_checked(here, tmp_path):
    done = alone(
        "run", here.name, "--on", "host", "--json", "-o", str(tmp_path / "y.npz"), cwd=here.parent, cache=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["max_abs_error"] < 1e-6
    assert result["numerics"]["reference"] == "onnx.reference"
    assert (result["device"], result["compile"]["packaged"]) == ("host", True)
    whose = (result["model"]["name"], result["model"]["sha256"])
    assert whose == (here.name, hashlib.sha256(here.read_bytes()).hexdigest())  # not those of the model it names
    with np.load(tmp_path / "y.npz") as arrays:
        assert np.isclose(arrays["output"].sum(), 1.0)


def test_the_documented_lines_load_it_in_a_plain_tvm_script(here, tmp_path):
    (lines,) = blocks(ROOT / "docs" / "models.md", "python", title="Packages")
    done = subprocess.run(
        [sys.executable, "-c", lines, str(here)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 10


def test_a_phone_takes_a_package_in_place_of_a_model(farm, here):
    (result,) = answer(farm.farm("run", str(here), "--on", "android", "--json"))["results"]
    assert result["max_abs_error"] < 1e-5
    assert result["compile"]["packaged"]
    inputs = here.parent / "x.npz"
    np.savez(inputs, input=np.ones((1, 3, 32, 32), np.float32))
    (result,) = answer(farm.farm("run", str(here), "--on", "android", "--input", str(inputs), "--json"))["results"]
    assert result["max_abs_error"] < 1e-5  # the model inside tells what these outputs should be
    assert result["given"] == ["input"]
