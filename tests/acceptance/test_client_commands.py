"""`bench`, `run`, `shell`, `submit`, `job`, `logs`, `watch` as people type them, and clients over a daemon's death."""

import fcntl
import json
import os
import subprocess
import sys
import termios
import threading
from contextlib import ExitStack

import numpy as np
import pytest

from farm import Client, ShellSpec
from farm.common.errors import ExitCode
from farm.model.job import JobState
from tests.support.tvm import ROOT, environment
from tests.support.whole_farm import answer, phones, refused, until, until_ready

LIMIT_S = 60.0

pytestmark = pytest.mark.farm("galaxy-s9", "oneplus-5t")


@pytest.fixture
def farm(whole):
    whole.farm("job", "cancel", "--mine")  # what a test that failed has left must not hold the phones of the others
    until_ready(whole)
    return whole


@pytest.fixture
def client(farm):
    with Client(farm.socket, on_notice=lambda _: None) as client:
        yield client


@pytest.fixture
def typed(farm):
    """Start a command as a person at a terminal does."""
    with ExitStack() as stack:

        def start(*arguments):
            command = Typed(farm, *arguments)
            stack.callback(command.close)
            return command

        yield start


class Typed:
    """A command under way, as a person at a terminal has it; stderr is read as it comes."""

    def __init__(self, farm, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "farm", *arguments], cwd=ROOT,
            env=environment() | {"FARM_SOCKET": str(farm.socket)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.said = []
        self.printed = []
        self._readers = [
            threading.Thread(target=lines.extend, args=(stream,))
            for lines, stream in ((self.said, self._process.stderr), (self.printed, self._process.stdout))
        ]
        for reader in self._readers:
            reader.start()

    def until_said(self, words):
        until(lambda: any(words in line for line in self.said) or self._process.poll() is not None)
        assert any(words in line for line in self.said), (self.said, self.printed)

    def end(self):
        code = self._process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join()
        return code

    def close(self):
        self._process.kill()
        self.end()
        self._process.stdout.close()
        self._process.stderr.close()


def test_bench_takes_every_phone_and_keeps_its_table_and_json(farm, model):
    table = farm.farm("bench", str(model), "--on", "android", "--repeat", "5")
    assert table.returncode == 0, table
    assert table.stdout.split()[:6] == ["PHONE", "MEDIAN", "95", "%", "RANGE", "VERDICT"]
    assert sum(phone.name in table.stdout for phone in phones(farm)) == 2
    assert "timing" in table.stderr
    document = answer(farm.farm("bench", str(model), "--on", "android", "--repeat", "5", "--json"))
    assert (document["ok"], document["spec"]["repeat"]) == (True, 5)
    assert {result["device"] for result in document["results"]} == {phone.name for phone in phones(farm)}
    assert all(len(result["samples_s"]) == 5 and result["attempts"][0]["fence"] for result in document["results"])


def test_run_writes_outputs_and_ranks_them(farm, model, tmp_path):
    given, written, labels = tmp_path / "in.npz", tmp_path / "out.npz", tmp_path / "labels.txt"
    np.savez(given, x=np.ones((1, 4, 8, 8), dtype="float32"))
    labels.write_text("".join(f"class {n}\n" for n in range(3)))
    done = farm.farm(
        "run", str(model), "--on", phones(farm)[0].name, "--input", str(given), "-o", str(written), "--top-k", "2",
        "--labels", str(labels),
    )  # fmt: skip
    assert done.returncode == 0, done
    with np.load(written, allow_pickle=False) as arrays:
        output = arrays["y"]
    best = int(output.argmax())
    assert done.stdout.splitlines()[1].split() == [
        phones(farm)[0].name, "y", "1", f"{output.max():.6g}", str(best), "class", str(best),
    ]  # fmt: skip
    assert len(done.stdout.splitlines()) == 3
    shown = farm.farm("run", str(model), "--on", phones(farm)[0].name)
    heading, _, values = shown.stdout.splitlines()
    assert heading.split()[-3:] == ["MIN", "MAX", "MEAN"]
    assert len(values.partition(": ")[2].split()) == output.size
    assert "input 'x' filled: random\n" in shown.stderr
    refused_name = farm.farm("run", str(model), "--on", "android", "-o", str(tmp_path / "out.txt"))
    assert refused_name.returncode == ExitCode.USAGE
    assert "out.npz" in refused_name.stderr
    every = farm.farm("run", str(model), "--on", "android", "--devices", "all", "--fill", "zeros", "-o", str(written))
    assert every.returncode == 0, every
    assert {path.name for path in tmp_path.glob("out.*.npz")} == {f"out.{phone.name}.npz" for phone in phones(farm)}


def test_shell_streams_what_the_phone_says_and_tells_its_exit_code(farm):
    done = farm.farm("shell", "--on", "android", "--", "echo out; echo oops >&2; exit 7")
    assert (done.returncode, done.stdout) == (ExitCode.FAILED, "out\n")
    assert "oops\n" in done.stderr
    assert "exit code is 7" in done.stderr
    every = farm.farm("shell", "--on", "android", "--devices", "all", "--", "getprop ro.product.model")
    assert every.returncode == 0, every
    assert sorted(line.partition(": ")[0] for line in every.stdout.splitlines()) == sorted(
        phone.name for phone in phones(farm)
    )
    document = answer(farm.farm("shell", "--on", "android", "--json", "--", "echo hi"))
    assert (document["results"][0]["exit_code"], document["results"][0]["stdout"]) == (0, "hi\n")


def test_shell_says_that_not_all_of_the_output_was_kept(farm):
    done = farm.farm("shell", "--on", phones(farm)[0].name, "--", "seq 1 400000")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) < 400_000
    assert "warning: the log has more than 4 MiB" in done.stderr


def test_ctrl_c_at_a_terminal_cancels_a_command_that_talks(farm, client):
    arguments = ["shell", "--on", phones(farm)[0].name, "--", "while true; do echo talk; sleep 1; done"]
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", 0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-m", "farm", *arguments], cwd=ROOT,
            env=environment() | {"FARM_SOCKET": str(farm.socket)},
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(theirs)
        said = b""
        while said.count(b"talk\r\n") < 2:
            said += terminal.read(4096)
        os.write(terminal.fileno(), b"\x03")
        assert process.wait(LIMIT_S) == ExitCode.INTERRUPTED
    assert client.jobs(limit=1)[0].state == JobState.CANCELLED


def test_held_and_detached_jobs_are_watched_and_logged_later(farm, client, typed):
    held = farm.farm("shell", "--on", "android", "--hold", "--", "echo held").stdout.split()
    later = farm.farm(
        "shell", "--on", "android", "--detach", "--after", *held, "--", "echo later; exit 3"
    ).stdout.split()
    assert [client.job(job).job.state for job in (*held, *later)] == [JobState.HELD, JobState.BLOCKED]
    listed = answer(farm.farm("job", "list", "--state", "held", "--json"))
    assert [row["id"] for row in listed["jobs"]] == held
    watching = typed("watch", *held, *later)
    assert farm.farm("job", "resume", *held).returncode == 0
    assert watching.end() == ExitCode.FAILED
    assert "exit code is 3" in "".join(watching.said)
    assert any("started" in line for line in watching.printed)
    logs = farm.farm("logs", *later)
    assert "stdout: later" in logs.stdout
    assert answer(farm.farm("job", "show", *later, "--json"))["result"]["exit_code"] == 3
    assert "exit code is 3" in farm.farm("job", "show", *later).stdout


def test_a_spec_file_is_tried_dry_submitted_and_waited_for(farm, client, model):
    names = [phone.name for phone in phones(farm)]
    file = model.parent / "jobs.toml"
    file.write_text(
        f'[[job]]\nkind = "shell"\ncommand = "true"\non = "android"\ndevices = "all"\nid = "first"\n'
        f'[[job]]\nkind = "bench"\nmodel = "{model.name}"\nrepeat = 3\nafter = ["first"]\n'
        f'[job.matrix]\non = ["{names[0]}", "{names[1]}"]\n'
    )
    before = len(client.jobs(limit=1000))
    plan = answer(farm.farm("submit", str(file), "--dry-run", "--json"))
    assert [each["spec"]["on"] for each in plan["entries"]] == ["android", *names]
    assert len(client.jobs(limit=1000)) == before
    document = answer(farm.farm("submit", str(file), "--wait", "--key", "test", "--json"))
    assert sorted(result["device"] for result in document["results"]) == sorted(names * 2)
    again = farm.farm("submit", str(file), "--key", "test")
    assert again.returncode == 0, again
    assert again.stdout.splitlines()[0].split() == ["NAME", "KIND", "ON", "JOBS", "ID"]
    assert len(client.jobs(limit=1000)) == before + 4


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["shell", "--on", "androod", "--", "id"], ExitCode.NO_PHONE, "nearest is android"),
        (["shell", "--on", "soc==", "--", "id"], ExitCode.USAGE, "soc=="),
        (["shell", "--on", "android", "--after", "job-of-nobody", "--", "id"], ExitCode.USAGE, "job-of-nobody"),
        (
            ["bench", "MODEL", "--on", "android", "--target", "opencl", "--devices", "1"],
            ExitCode.USAGE,
            "hint: targets: cpu",
        ),
        (["run", "MODEL", "--on", "android", "--labels", "MODEL"], ExitCode.USAGE, "--top-k"),
        (["run", "MODEL", "--on", "android", "-o", "/absent/x.npz"], ExitCode.USAGE, "/absent"),
        (["job", "show", "job-of-nobody"], ExitCode.USAGE, "job-of-nobody"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_clear_line_and_its_code(farm, model, arguments, code, said):
    done = farm.farm(*(str(model) if word == "MODEL" else word for word in arguments))
    refused(done, code, said)


def test_a_command_and_a_client_outlive_the_daemons_death(farm, client, typed):
    """SIGKILL while a phone works: the command says so once, the job is tried again, events lack and double nothing."""
    since = client.status().seq
    heard = []

    def listen():
        with Client(farm.socket, on_notice=lambda _: None) as other:
            for event in other.events(since=since):
                heard.append(event)
                if event.kind == "job.done":
                    return

    listener = threading.Thread(target=listen)
    listener.start()
    phone = phones(farm)[0]
    line = "while [ ! -e /data/local/tmp/go ]; do sleep 0.1; done; echo done"
    command = typed("shell", "--on", phone.name, "--max-attempts", "2", "--", line)
    command.until_said("running the command")
    [job] = client.jobs(state=("running",))
    farm.daemon.kill()
    command.until_said("waiting up to 60 s")
    farm.daemon.start().close()
    until(lambda: [each.state for each in client.job(job.id).attempts] == ["failed", "running"])
    phone.shell("touch /data/local/tmp/go")
    assert command.end() == 0
    listener.join(LIMIT_S)
    assert command.printed.count("done\n") == 1
    assert len([line for line in command.said if "waiting up to" in line]) == 1
    numbers = [event.seq for event in heard]
    assert numbers == sorted(set(numbers))
    kept = {event.seq for event in client.events(since=since, follow=False) if event.seq <= numbers[-1]}
    assert kept <= set(numbers)
    assert [event.subject for event in heard if event.kind == "job.submitted"] == [job.id]
    assert [attempt.state for attempt in client.job(job.id).attempts] == ["failed", "done"]


def test_submit_prints_json_ids(farm, client):
    submitted = client.submit(ShellSpec(on="android", command="true", hold=True))
    shown = json.loads(farm.farm("job", "cancel", *submitted.ids, "--json").stdout)
    assert [row["state"] for row in shown["jobs"]] == ["cancelled"]
