"""The main job in one path: real adb, virtual phones of three makes, the daemon, stock clients, a model benchmarked."""

import json
import sys

import numpy as np
import onnx
import pytest

from tests.support.whole_farm import Story

PROFILES = ("oneplus-12", "galaxy-note20", "realme-gt-neo3")

pytestmark = pytest.mark.farm(*PROFILES, anywhere=True)


def test_phones_are_known_for_what_they_are(farm):
    devices = {device["soc"]: device for device in farm.status()["devices"]}
    assert {soc: device["gpu"] for soc, device in devices.items()} == {
        "SM8650": "Adreno 750",
        "SM8250": "Adreno 650",
        "MT6895": "Mali-G610",
    }
    assert {device["state"] for device in devices.values()} == {"ready"}
    assert len({device["bundle"] for device in devices.values()}) == 1


def test_the_stock_query_lists_every_key(farm):
    host, port = farm.tracker()
    query = farm.run(sys.executable, "-m", "tvm.exec.query_rpc_tracker", "--host", host, "--port", str(port))
    assert query.returncode == 0, query.stderr
    rows = dict(line.split(maxsplit=1) for line in query.stdout.splitlines() if line.count(" ") > 2 and ":" not in line)
    assert rows["android"].split() == ["3", "3", "0"]
    assert rows["adreno-750"].split() == ["1", "1", "0"]
    assert rows["sm8250"].split() == ["1", "1", "0"]


def test_an_unmodified_client_computes_on_the_phone_it_asked_for(farm):
    from tvm import rpc
    from tvm.runtime import tensor

    story = Story(farm)
    session = rpc.connect_tracker(*farm.tracker()).request("mali-g610", session_timeout=60)
    holders = {device["soc"]: device["holder"] for device in farm.status()["devices"] if device["holder"]}
    values = np.arange(1000, dtype="float32")
    remote = tensor(values, session.cpu(0))
    assert (remote.numpy() == values).all()
    assert list(holders) == ["MT6895"]
    del remote
    session._sess.get_function("CloseRPCConnection")()
    story.until("lease.released")


def test_a_model_whose_data_is_beside_it_is_benchmarked_on_every_phone(farm, model, tmp_path):
    path = tmp_path / "net.onnx"  # as torch.onnx.export writes it
    onnx.save_model(onnx.load(model), path, save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    bench = farm.farm("bench", str(path), "--on", "android", "--repeat", "10", "--json")
    assert bench.returncode == 0, bench.stderr
    assert "net.onnx has tensors in 'net.onnx.data', which go with it" in bench.stderr
    assert "net.onnx" in farm.farm("history", str(path)).stdout
    results = json.loads(bench.stdout)["results"]
    assert sorted(result["gpu"] for result in results) == ["Adreno 650", "Adreno 750", "Mali-G610"]
    for result in results:
        assert len(result["samples_s"]) == 10
        assert 0 < result["latency"]["min_ms"] <= result["latency"]["median_ms"] <= result["latency"]["max_ms"]
        assert result["latency"]["low_ms"] <= result["latency"]["median_ms"] <= result["latency"]["high_ms"]
        assert result["max_abs_error"] < 1e-5
