"""The device scripts, run by the shells that run them: mksh + toybox as on Android, or dash + this host's programs."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.devices.phone_folder import (
    PROGRAMS_OF,
    SCRIPTS,
    alive,
    end,
    make_phone,
    processes_below,
    sha,
    shell_here,
)
from tests.support.needs import need, needs
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until


@pytest.fixture
def phone(tmp_path):
    made = make_phone(tmp_path, shell_here())
    yield made
    end(made)


@pytest.fixture
def phone_without_flock(tmp_path):
    need(*PROGRAMS_OF["dash"])
    made = make_phone(tmp_path, "dash", without="flock")
    yield made
    end(made)


def last_word(follower):
    """What a follower says at the end."""
    said, _ = follower.communicate(timeout=HANG_S)
    return said.strip()


def test_start_binds_and_keeps_its_state(phone):
    said = phone.start()
    state = phone.state()
    assert said == f"started port=5000 pid={state['pid']}\n"
    assert state["bundle"] == "b1"
    assert state["secret_sha256"] == sha("one")
    assert state["id"] == sha("one")[:16]
    assert state["pgid"] == state["pid"]
    assert state["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert abs(int(state["started"]) - time.time()) < HANG_S


def test_the_server_is_alone_in_its_group_deaf_to_hup_and_pipe_and_holds_no_lock(phone):
    phone.start()
    pid = int(phone.state()["pid"])
    assert os.getpgid(pid) == os.getsid(pid) == pid
    ignored = int(next(
        line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn")
    ), 16)  # fmt: skip
    for number in (signal.SIGHUP, signal.SIGPIPE):
        assert ignored & 1 << (number - 1)
    open_files = [path.readlink().name for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert not [name for name in open_files if "lock" in name]
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert f"LD_LIBRARY_PATH={phone.root}/bundles/b1".encode() in environment
    assert b"FARM_SECRET" not in environment
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert b"--host=127.0.0.1" in command
    assert b"--port-end=5010" in command


@pytest.mark.parametrize(("end", "status"), [(signal.SIGKILL, "137"), (signal.SIGSEGV, "139"), (signal.SIGTERM, "143")])
def test_a_death_is_told_at_once_with_its_cause(phone, end, status):
    """A released lock tells it: nobody looks once a second, as without flock."""
    phone.start()
    sleep, slept = Path(phone.path, "sleep"), phone.root.parent / "slept"
    sleep.unlink()
    sleep.write_text(f'#!{phone.shell[0]}\necho "$@" >>{slept}\n')
    sleep.chmod(0o755)
    follower = phone.follow()
    os.kill(int(phone.state()["pid"]), end)
    assert last_word(follower).startswith(f"died status={status} at=")
    assert not slept.exists()
    assert phone.status()["why"] == "the server is dead"


def test_without_flock_a_death_is_told_within_a_poll(phone_without_flock):
    phone = phone_without_flock
    phone.start()
    assert phone.status()["adoptable"] == "yes"
    follower = phone.follow()
    os.kill(int(phone.state()["pid"]), signal.SIGSEGV)
    assert last_word(follower).startswith("died status=139")


def test_a_killed_supervisor_takes_the_server_along(phone):
    phone.play("session")
    phone.start()
    state, session = phone.state(), phone.work_file("session-*")
    follower = phone.follow()
    os.killpg(int(state["supervisor"]), signal.SIGKILL)
    assert last_word(follower).startswith("died status=supervisor-killed")
    assert not alive(int(state["pid"]))
    assert not alive(int(session.name.rpartition("-")[2]))


def test_a_lost_link_kills_nothing(phone):
    phone.start()
    follower = phone.follow()
    # mksh notes a signal that comes before it starts `flock`, and waits for that all the same.
    until(lambda: any({"flock", "sleep"} & set(each.cmdline()) for each in psutil.Process(follower.pid).children()))
    os.killpg(follower.pid, signal.SIGHUP)  # what adbd does to a shell whose stream has gone
    follower.wait(HANG_S)
    follower.stdout.close()
    status = phone.status()
    assert (status["adoptable"], status["sessions"]) == ("yes", "0")
    again = phone.follow()
    phone.run("stop")
    assert last_word(again).startswith("died")


@pytest.mark.parametrize(
    ("secret", "bundle", "why"),
    [("two", "b1", "its secret is not ours"), ("one", "b2", "it runs another bundle")],
)
def test_another_process_is_not_adopted(phone, secret, bundle, why):
    phone.start()
    status = phone.status(secret, bundle)
    assert (status["adoptable"], status["why"]) == ("no", why)


def test_another_boot_or_another_process_of_that_number_is_not_adopted(phone):
    phone.start()
    path = phone.root / "run" / "state"
    whole = path.read_text()
    state = phone.state()
    path.write_text(whole.replace(state["boot"], "0" * 36))
    assert phone.status()["why"] == "the phone was rebooted since"
    path.write_text(whole.replace(f"ticks={state['ticks']}", f"ticks={int(state['ticks']) + 1}"))
    assert phone.status()["why"] == "the server is dead"
    path.write_text(whole.partition("started=")[0])
    assert phone.status()["why"] == "no server was started"


def test_a_new_start_replaces_the_old_server(phone):
    phone.start("one")
    old = int(phone.state()["pid"])
    follower = phone.follow("one")
    phone.start("two")
    assert last_word(follower).startswith("died")
    assert not alive(old)
    assert phone.status("two")["adoptable"] == "yes"
    assert sorted(path.name for path in (phone.root / "run").glob("work.*")) == [f"work.{sha('two')[:16]}"]


@pytest.mark.parametrize(
    "order", [("start", "b1", sha("two"), "5000", "5010"), ("stop",), ("clean",)], ids=lambda o: o[0]
)
def test_a_server_whose_files_somebody_removed_is_found_and_ended(phone, order):
    phone.play("session", "session-own-group")
    phone.start("one")
    pids = [int(phone.work_file(f"{kind}-[0-9]*").name.rpartition("-")[2]) for kind in ("session", "session-own-group")]
    pids.append(int(phone.state()["pid"]))
    follower = phone.follow("one")
    while (phone.root / "run").exists():  # its supervisor may write into it meanwhile
        shutil.rmtree(phone.root / "run", ignore_errors=True)
    phone.play()
    code, said = phone.run(*order, secret="two")
    assert code == 0, said
    assert [pid for pid in pids if alive(pid)] == []
    assert last_word(follower).startswith("died")


def test_a_server_whose_files_are_removed_while_it_starts_is_refused_and_ended(phone):
    phone.play("remove-own-files")
    code, said = phone.run("start", "b1", sha("one"), "5000", "5010", secret="one")
    assert (code, said.splitlines()[0]) == (1, "failed its files were removed while it started")
    until(lambda: not processes_below(phone.root))


@pytest.mark.parametrize(
    ("order", "code", "said"),
    [("idle", 0, "started port=5000"), ("remove-own-files", 1, "failed its files were removed while it started")],
)
def test_a_log_that_cannot_be_made_ends_no_supervisor(phone, order, code, said):
    """As where its files are removed before the log is made: dash and mksh end where `:` cannot redirect."""
    mkdir = Path(phone.path, "mkdir")
    mkdir.unlink()
    mkdir.write_text(f'#!{phone.shell[0]}\nexec {shutil.which("mkdir")} "$@" {phone.root}/run/log\n')
    mkdir.chmod(0o755)
    phone.play(order)
    ended, words = phone.run("start", "b1", sha("one"), "5000", "5010", secret="one")
    assert (ended, words.splitlines()[0].startswith(said)) == (code, True), words


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("die-early", "failed the server ended before it was bound, status=7"),
        ("no-port", "failed no free port from 5000 to 5009"),
    ],
)
def test_a_server_that_does_not_bind_is_refused_in_its_own_words(phone, order, reason):
    phone.play(order)
    code, said = phone.run("start", "b1", sha("one"), "5000", "5010", secret="one")
    first, *words = said.splitlines()
    assert (code, first) == (1, reason)
    assert any(word.startswith("| ") for word in words)
    assert phone.status()["adoptable"] == "no"
    until(lambda: not list((phone.root / "run").glob("pid.*")))


def test_a_bundle_without_its_program_is_refused(phone):
    code, said = phone.run("start", "b9", sha("one"), "5000", "5010", secret="one")
    assert (code, said) == (1, "failed no program tvm_rpc in bundle b9\n")


@pytest.mark.parametrize("arguments", [(), ("start",), ("start", "b1", "x", "5000", "5010"), ("follow",), ("dance",)])
def test_wrong_use_is_told(phone, arguments):
    code, said = phone.run(*arguments)
    assert code == 2
    assert said.startswith("failed usage:")


def test_the_log_has_a_limit_and_keeps_how_it_began(phone):
    phone.play("flood")  # 3 MB
    phone.start()
    phone.work_file("flooded")
    sizes = [path.stat().st_size for path in (phone.root / "run").glob("log*")]
    assert sum(sizes) < 1_200_000
    _, text = phone.run("log")
    assert "Bind to 127.0.0.1:5000" in text
    assert "x" * 99 in text


@pytest.mark.parametrize("order", ["session", "session-own-group", "session-with-child"])
def test_reap_ends_sessions_that_ignore_sigterm_and_spares_the_server(phone, order):
    phone.play(order)
    phone.start()
    session = int(phone.work_file(f"{order}-*").name.rpartition("-")[2])
    count = "2" if order == "session-with-child" else "1"
    until(lambda: phone.status()["sessions"] == count)
    code, said = phone.run(script="reap.sh")
    assert (code, said) == (0, f"reaped={count} server=alive\n")
    assert not alive(session)
    assert phone.status()["sessions"] == "0"
    assert alive(int(phone.state()["pid"]))


def test_reap_calls_a_stopped_server_dead(phone):
    phone.start()
    os.kill(int(phone.state()["pid"]), signal.SIGSTOP)
    assert phone.run(script="reap.sh") == (0, "reaped=0 server=dead\n")


def test_reap_says_that_there_is_no_server(phone):
    assert phone.run(script="reap.sh") == (0, "reaped=0 server=dead\n")
    phone.start()
    follower = phone.follow()
    os.kill(int(phone.state()["pid"]), signal.SIGKILL)
    last_word(follower)
    assert phone.run(script="reap.sh") == (0, "reaped=0 server=dead\n")


def test_a_dying_server_takes_its_sessions_along(phone):
    phone.play("session", "session-own-group")
    phone.start()
    pids = [int(phone.work_file(f"{kind}-[0-9]*").name.rpartition("-")[2]) for kind in ("session", "session-own-group")]
    follower = phone.follow()
    os.kill(int(phone.state()["pid"]), signal.SIGKILL)
    last_word(follower)
    assert not [pid for pid in pids if alive(pid)]


def test_clean_leaves_nothing(phone):
    phone.play("session")
    phone.start()
    pid, session = int(phone.state()["pid"]), int(phone.work_file("session-*").name.rpartition("-")[2])
    code, said = phone.run("clean")
    assert (code, said) == (0, "cleaned\n")
    assert not phone.root.exists()
    assert not alive(pid)
    assert not alive(session)


@needs("shellcheck")
def test_shellcheck_has_nothing_to_say():
    done = subprocess.run(
        ["shellcheck", "-s", "sh", *sorted(map(str, SCRIPTS.glob("*.sh")))], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")
