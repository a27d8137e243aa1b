"""Both clients against made-up answers over the real wire."""

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

from farm import AsyncClient, Client, LeaseSpec, ShellSpec
from farm.client.specs import packed_arrays
from farm.common.errors import Code, DaemonUnreachableError, NoPhoneError, PhoneError, ProtocolError, UserError
from farm.control.messages import MAX_FRAME_BYTES
from farm.kinds.outcomes import BenchOutcome
from farm.model.job import JobState
from tests.support.errors import raises_code
from tests.support.tiny_model import tiny_onnx
from tests.support.waiting import HANG_S

BENCHED = {
    "device": "pixel", "target": "cpu", "soc": "SM8650", "gpu": "Adreno 750", "samples_s": [0.002, 0.004],
    "max_abs_error": 1e-7,
    "latency": {
        "count": 2, "min_ms": 2.0, "median_ms": 3.0, "mean_ms": 3.0, "max_ms": 4.0, "std_ms": 1.4, "low_ms": 2.0,
        "high_ms": 4.0,
    },
}  # fmt: skip


def test_a_submitted_array_is_waited_for_and_its_results_have_types(daemon, client, background, tmp_path):
    model = tmp_path / "net.onnx"
    model.write_bytes(tiny_onnx(doc="onnx" * MAX_FRAME_BYTES))  # several chunks
    work = background(client.bench, model, on="android", repeat=2)
    daemon.until_called("job.watch")
    spec = daemon.submissions[0]["spec"]
    assert (spec["model"], spec["name"]) == (hashlib.sha256(model.read_bytes()).hexdigest(), "net.onnx")
    assert (spec["devices"], daemon.submissions[0]["must_match"]) == ("all", True)
    daemon.begin("job-0001", "pixel")
    daemon.end("job-0001", BENCHED)
    daemon.end("job-0002", error=PhoneError("galaxy was unplugged", hint="plug it in"))
    good, bad = work.result(HANG_S)
    assert isinstance(good, BenchOutcome)
    assert good.raise_for_error() is good
    assert good.samples_s.dtype == np.float64
    assert good.samples_s.tolist() == [0.002, 0.004]
    assert (good.device, good.latency.median_s, good.attempts[0].number) == ("pixel", 0.003, 1)
    with pytest.raises(PhoneError, match="galaxy was unplugged") as raised:
        bad.raise_for_error()
    assert raised.value.hint == "plug it in"
    assert (bad.ok, bad.device, bad.samples_s.size) == (False, "galaxy", 0)


def test_a_model_in_two_files_is_uploaded_as_the_one_that_it_is(client, said, tmp_path):
    path, whole = tmp_path / "net.onnx", tmp_path / "whole.onnx"
    whole.write_bytes(tiny_onnx())
    onnx.save_model(onnx.load(whole), path, save_as_external_data=True, location="w", size_threshold=0)
    spec = client.spec("compare", model=path, model_b=whole, on="android", target_b="adreno")
    assert (spec.model, spec.name) == (spec.model_b, "net.onnx")
    assert client.get_file(spec.model, tmp_path / "got.onnx") == whole.stat().st_size
    assert said == ["net.onnx has tensors in 'w', which go with it: 0.00 MB"]
    (tmp_path / "jobs.toml").write_text('kind = "bench"\nmodel = "net.onnx"\non = "android"\n')
    client.submit_file(tmp_path / "jobs.toml")
    (tmp_path / "w").unlink()
    for refused in (lambda: client.submit_file(tmp_path / "jobs.toml"), lambda: client.bench(path, on="android")):
        with pytest.raises(UserError, match="'w', which is not beside it"):
            refused()


COMPARED = {"comparison": {"answer": "faster", "ratio": 0.5, "low": 0.4, "high": 0.6}}


def test_a_comparison_is_of_every_phone_and_of_one_model_built_in_two_ways_too(daemon, client, background, tmp_path):
    model, other = tmp_path / "net.onnx", tmp_path / "other.onnx"
    model.write_bytes(tiny_onnx())
    other.write_bytes(tiny_onnx(batch=2))
    work = background(client.compare, model, on="android", precision_b="float16")
    daemon.until_called("job.watch")
    spec = daemon.submissions[0]["spec"]
    assert (spec["kind"], spec["devices"], spec["precision_b"]) == ("compare", "all", "float16")
    assert (spec["model_b"], spec["name_b"]) == (spec["model"], spec["name"])
    daemon.end("job-0001", COMPARED)
    daemon.end("job-0002", error=PhoneError("galaxy was unplugged"))
    good, bad = work.result(HANG_S)
    assert (good.answer, good.ratio, good.interval) == ("faster", 0.5, (0.4, 0.6))
    assert (bad.answer, bad.ratio) == ("", None)
    one = background(client.compare, model, other, on="android", devices=1)
    daemon.until_called("job.watch", 2)
    spec = daemon.submissions[1]["spec"]
    assert (spec["model_b"], spec["name_b"]) == (hashlib.sha256(other.read_bytes()).hexdigest(), "other.onnx")
    daemon.end("job-0003", COMPARED)
    assert len(one.result(HANG_S)) == 1


def test_a_tuning_run_is_waited_for_and_its_package_written(daemon, client, background, tmp_path):
    model, package = tmp_path / "net.onnx", tmp_path / "net.farm.tar"
    model.write_bytes(tiny_onnx())
    with pytest.raises(UserError, match="there is no folder"):
        client.tune(model, on="android", output=tmp_path / "nowhere" / "net.farm.tar")
    assert daemon.submissions == []
    work = background(client.tune, model, on="android", trials=5, devices=2, output=package)
    daemon.until_called("job.watch")
    spec = daemon.submissions[0]["spec"]
    assert (spec["kind"], spec["trials"], spec["devices"]) == ("tune", 5, 2)
    kept = client.put_file(b"package")
    daemon.end("job-0001", {"trials": 5, "package": kept, "speedup": {"times": 2.0, "low": 1.9, "high": 2.1}})
    tuned = work.result(HANG_S)
    assert (tuned.trials, tuned.speedup, tuned.interval) == (5, 2.0, (1.9, 2.1))
    assert package.read_bytes() == b"package"


async def test_a_search_that_fails_is_an_outcome_and_one_that_is_given_up_is_cancelled(daemon, tmp_path):
    model, package = tmp_path / "net.onnx", tmp_path / "net.farm.tar"
    model.write_bytes(tiny_onnx())
    async with AsyncClient(daemon.socket) as client:
        work = asyncio.create_task(client.tune(model, on="android", output=package))
        await asyncio.to_thread(daemon.until_called, "job.watch")
        await asyncio.to_thread(daemon.end, "job-0001", None, PhoneError("pixel was unplugged"))
        with pytest.raises(PhoneError, match="unplugged"):
            (await work).raise_for_error()
        assert not package.exists()
        work = asyncio.create_task(client.compare(model, on="android", devices=1))
        await asyncio.to_thread(daemon.until_called, "job.watch", 2)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert daemon.jobs["job-0002"]["job"]["state"] == "cancelled"


def test_a_run_takes_arrays_and_gives_arrays(daemon, client, background, tmp_path):
    model = tmp_path / "net.json"
    model.write_bytes(b"{}")  # Relax: only TVM reads it
    given = {"file": np.arange(3, dtype="float32"), "a/b": np.eye(2)}
    work = background(client.run, model, on="android", inputs=given, labels=["cat", "dog"], top_k=1)
    daemon.until_called("job.watch")
    spec = daemon.submissions[0]["spec"]
    sent = tmp_path / "sent.npz"
    client.get_file(spec["inputs"], sent)
    with np.load(sent, allow_pickle=False) as arrays:
        assert {name: array.tolist() for name, array in arrays.items()} == {
            "file": [0, 1, 2], "a/b": [[1, 0], [0, 1]],
        }  # fmt: skip
    outputs = client.put_file(packed_arrays({"probabilities": np.array([0.25, 0.75])}))
    top = {"probabilities": [{"index": 1, "value": 0.75, "label": "dog"}]}
    daemon.end("job-0001", {"outputs": outputs, "top_k": top})
    [outcome] = work.result(HANG_S)
    assert outcome.outputs["probabilities"].tolist() == [0.25, 0.75]
    assert outcome.top_k["probabilities"][0].label == "dog"


def test_outputs_that_would_run_code_are_not_loaded(daemon, client):
    import io

    evil = io.BytesIO()
    np.savez(evil, x=np.array([print], dtype=object))
    from farm import RunSpec

    submitted = client.submit(RunSpec(on="android", model="0" * 64, name="net"))
    daemon.end("job-0001", {"outputs": client.put_file(evil.getvalue())})
    with pytest.raises(ProtocolError, match=r"no \.npz file of plain arrays"):
        client.wait(submitted)
    assert client.job("job-0001", fetch_outputs=False).ok


def test_inputs_that_are_no_numbers_are_refused_before_anything_is_sent(daemon, client, tmp_path):
    model = tmp_path / "net.onnx"
    model.write_bytes(tiny_onnx())
    with pytest.raises(UserError, match=r"inputs have no names \(ndarray\)"):
        client.run(model, on="android", inputs=np.zeros(3))
    with pytest.raises(UserError, match="'x' is no array of numbers"):
        client.run(model, on="android", inputs={"x": np.array(["a"])})
    with pytest.raises(UserError, match="repeat"):
        client.bench(model, on="android", repeat=0)
    with pytest.raises(UserError, match="is a folder"):
        client.bench(tmp_path, on="android")
    assert daemon.submissions == []


def test_the_same_key_is_the_same_jobs_and_none_is_always_new(daemon, client):
    spec = ShellSpec(on="android", command="id")
    first, again, other = client.submit(spec, key="k"), client.submit(spec, key="k"), client.submit(spec)
    assert first.ids == again.ids
    assert other.ids != first.ids
    assert len({fields["key"] for fields in daemon.submissions}) == 2


def test_a_selector_nobody_matches_is_a_warning_or_an_error(daemon, client):
    spec = ShellSpec(on="nothing", command="id")
    assert client.submit(spec).warnings == ("no phone matches nothing",)
    with pytest.raises(NoPhoneError):
        client.submit(spec, must_match=True)


def test_jobs_are_paged_and_changed(daemon, client):
    for _ in range(3):
        client.submit(ShellSpec(on="android", command="id"))
    assert [job.id for job in client.jobs(limit=2)] == ["job-0003", "job-0002"]
    assert [job.id for job in client.jobs(before="job-0002")] == ["job-0001"]
    assert client.hold("job-0001")[0].state is JobState.HELD
    assert client.resume("job-0001")[0].state is JobState.QUEUED
    with raises_code(Code.NOT_ENDED, match="queued"):
        client.job("job-0001").raise_for_error()
    assert [job.state for job in client.cancel(["job-0001", "job-0002"])] == [JobState.CANCELLED] * 2
    with raises_code(Code.JOB_CANCELLED, match="was cancelled"):
        client.job("job-0001").raise_for_error()
    assert [job.id for job in client.jobs(state=("cancelled",))] == ["job-0002", "job-0001"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_wait_outlives_the_daemon_and_says_so_once(daemon, client, background, said, end):
    submitted = client.submit(ShellSpec(on="android", command="id"))
    waits = [background(client.wait, submitted) for _ in range(2)]
    daemon.until_called("job.watch", 2)
    getattr(daemon, end)()
    daemon.start()
    daemon.until_called("job.watch", 4)
    daemon.end("job-0001", {"exit_code": 0, "stdout": "uid=2000", "stderr": ""})
    for wait in waits:
        [outcome] = wait.result(HANG_S)
        assert (outcome.exit_code, outcome.stdout) == (0, "uid=2000")
    assert len([line for line in said if "waiting up to 5 s" in line]) == 1
    assert said[-1] == "the farm daemon is back"


def test_events_go_on_over_restarts_without_gap_or_double(daemon, client, background):
    heard, start = [], threading.Event()

    def listen():
        for event in client.events(since=0):
            heard.append((event.seq, event.data["n"]))
            start.set()
            if event.data["n"] == 8:
                return

    first = daemon.tell("test.happened", "x", n=0)
    listening = background(listen)
    start.wait(HANG_S)
    for n in range(1, 9):
        daemon.tell("test.happened", "x", n=n)
        if n % 3 == 0:
            daemon.kill()
            daemon.tell("test.happened", "x", n=n + 0.5)  # while nobody could hear it
            daemon.start()
    listening.result(HANG_S)
    assert [n for _, n in heard] == [0, 1, 2, 3, 3.5, 4, 5, 6, 6.5, 7, 8]
    assert heard[0][0] == first
    assert [seq for seq, _ in heard] == sorted({seq for seq, _ in heard})


def test_events_without_following_end_by_themselves(daemon, client):
    daemon.tell("test.happened", "x", n=1)
    daemon.tell("test.happened", "y", n=2)
    assert [event.subject for event in client.events(since=0, follow=False)] == ["x", "y"]
    assert [event.subject for event in client.events(since=0, follow=False, subject="y")] == ["y"]
    assert list(client.events(follow=False)) == []


def test_a_daemon_that_was_never_there_fails_at_once_and_one_that_stays_away_in_time(tmp_path, daemon):
    with Client(tmp_path / "absent.sock") as client, pytest.raises(DaemonUnreachableError, match="no farm daemon"):
        client.status()
    with Client(daemon.socket, restart_s=0.3, on_notice=lambda _: None) as client:
        assert client.status().devices[0].name == "pixel"
        daemon.kill()
        with pytest.raises(DaemonUnreachableError):
            client.status()


def test_a_submission_that_no_head_answers_is_sent_again_with_its_key(daemon, client, said):
    daemon.takeover = 2
    (job,) = client.submit(ShellSpec(on="android", command="id")).ids
    assert [each["key"] for each in daemon.submissions] == [daemon.submissions[0]["key"]] * 3
    assert list(daemon.jobs) == [job]
    assert len(said) == 1


def test_a_head_that_stays_away_is_not_waited_for_for_ever(daemon):
    daemon.takeover = 1_000_000
    with Client(daemon.socket, restart_s=0.3, on_notice=lambda _: None) as client, raises_code(Code.HEAD_AWAY):
        client.submit(ShellSpec(on="android", command="id"))


def test_an_idle_connection_of_a_daemon_restarted_meanwhile_is_no_news(daemon, client, said):
    assert [device.name for device in client.devices()] == ["pixel", "galaxy"]
    daemon.kill()
    daemon.start()
    assert client.status().tracker == ("127.0.0.1", 9190)
    assert said == []


def test_logs_are_followed_over_a_restart(daemon, client, background):
    client.submit(ShellSpec(on="android", command="id"))
    line = {"at": "2026-11-20T12:00:00+00:00", "level": "info", "source": "stdout", "text": "one"}
    daemon.lines.append(line)
    following = background(lambda: [line.text for line in client.logs("job-0001", follow=True)])
    daemon.until_called("job.logs")
    daemon.kill()
    daemon.start()
    daemon.until_called("job.logs", 2)
    daemon.lines.append(line | {"text": "two"})
    daemon.end("job-0001")
    assert following.result(HANG_S) == ["one", "two"]


def test_a_wait_with_a_limit_gives_up_and_leaves_the_job(daemon, client):
    client.submit(ShellSpec(on="android", command="id"))
    with pytest.raises(TimeoutError, match=r"within 0\.05 s; they continue"):
        client.wait("job-0001", timeout_s=0.05)
    assert client.job("job-0001").job.state is JobState.QUEUED


def test_a_watch_tells_when_nothing_happens(daemon, client):
    client.submit(ShellSpec(on="android", command="id"))
    told = client.watch("job-0001", idle_s=0.05)
    assert next(told).kind == "job.submitted"
    assert next(told) is None
    daemon.begin("job-0001", "pixel")
    assert next(event for event in told if event is not None).kind == "attempt.started"
    daemon.end("job-0001")
    assert [event.kind for event in told if event is not None] == ["job.done"]


async def test_many_tasks_share_one_client(daemon):
    async with AsyncClient(daemon.socket) as client:
        specs = [LeaseSpec(on="android", note=str(n)) for n in range(50)]
        submitted = await asyncio.gather(*map(client.submit, specs))
        assert len({each.ids for each in submitted}) == 50
        assert len(await client.jobs(limit=1000)) == 50


def test_a_file_arrives_whole_or_not_at_all(daemon, client, tmp_path):
    content = os.urandom(3 * MAX_FRAME_BYTES + 17)
    steps = []
    sha256 = client.put_file(content, on_bytes=lambda done, total: steps.append(done))
    assert steps == [0, *(n * MAX_FRAME_BYTES for n in (1, 2, 3)), len(content)]
    assert client.get_file(sha256, tmp_path / "copy") == len(content)
    assert (tmp_path / "copy").read_bytes() == content
    with pytest.raises(UserError, match="no artifact"):
        client.get_file("0" * 64, tmp_path / "other")
    with pytest.raises(UserError, match="cannot write"):
        client.get_file(sha256, tmp_path / "absent" / "copy")
    (tmp_path / "artifacts" / sha256).write_bytes(content[:-1] + b"?")
    with pytest.raises(ProtocolError, match="not artifact"):
        client.get_file(sha256, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["artifacts", "control.sock", "copy"]


def test_an_empty_file_is_a_file(client, tmp_path):
    (tmp_path / "empty").touch()
    sha256 = client.put_file(tmp_path / "empty")
    assert client.get_file(sha256, tmp_path / "copy") == 0
    assert (tmp_path / "copy").read_bytes() == b""


def test_a_closed_client_says_so(daemon):
    client = Client(daemon.socket)
    assert client.status().version == "0.1.0"
    told = client.events(since=0)
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.status()
    told.close()


def test_a_program_that_forgets_to_close_ends(daemon):
    program = "import sys; from farm import Client; client = Client(sys.argv[1]); print(client.status().version)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(daemon.socket)],
        capture_output=True, text=True, timeout=HANG_S, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "0.1.0\n", "")
