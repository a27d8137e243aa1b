"""What the real adb programs (29 and 36) can do with a virtual phone."""

import os
import socket
import subprocess
import threading

import pytest

from tests.support.needs import needs_namespaces
from tests.support.waiting import HANG_S

TMP = "/data/local/tmp"


@pytest.fixture(autouse=True)
def tidy(rig):
    yield
    rig.text("shell", f"rm -rf {TMP}/t")


def outcome(done):
    return done.returncode, done.stdout, done.stderr


def said(done):
    """adb 29 reports transfers on stdout, 36 on stderr."""
    return (done.stdout + done.stderr).decode()


def test_it_is_listed_with_its_model_and_features(rig):
    assert {"shell_v2", "cmd", "stat_v2", "ls_v2", "fixed_push_mkdir"} <= set(rig.text("features").split())
    line = next(line for line in rig.adb.text("devices", "-l").splitlines() if line.startswith(rig.serial))
    assert " device " in line
    assert "model:PJD110" in line


SPEAKS = "echo out; echo err >&2; exit 7"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([SPEAKS], (7, b"out\n", b"err\n")),
        (["-x", SPEAKS], (0, b"out\nerr\n", b"")),  # without the protocol both are merged and the code is lost
        (["yes | head -n 2"], (0, b"y\ny\n", b"")),  # a closed pipe ends the writer
        *(([f"exit {code}"], (code, b"", b"")) for code in (0, 1, 126, 127, 255)),
    ],
)
def test_what_a_shell_tells(rig, words, told):
    assert outcome(rig.run("shell", *words)) == told


def test_a_killed_shell_reports_128_and_its_signal(rig):
    assert rig.run("shell", "kill -9 $$").returncode == 137


def test_stdin_reaches_the_command_and_ends_and_large_output_is_complete(rig):
    assert len(rig.run("shell", "head -c 8000000 /dev/zero").stdout) == 8_000_000
    data = os.urandom(300_000)
    assert rig.run("shell", "wc -c", stdin=data).stdout.split() == [b"300000"]


def test_binary_output_is_unchanged(rig):
    expected = bytes(range(256)) * 16
    octal = "".join(f"\\0{byte:03o}" for byte in range(256))
    command = f"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do printf '%b' '{octal}'; done"
    assert rig.run("exec-out", command).stdout == expected
    assert rig.run("shell", command).stdout == expected


def test_a_terminal_when_asked_for(rig):
    assert rig.run("shell", "-tt", "tty").stdout.startswith(b"/dev/pts/")
    assert rig.run("shell", "tty").returncode != 0


def test_a_background_child_with_its_own_descriptors_does_not_hold_the_shell(rig):
    child = rig.text("shell", "sleep 1000 </dev/null >/dev/null 2>&1 & echo $!").strip()  # or it would not return
    rig.text("shell", f"kill {child}")


def test_shells_see_none_of_the_phones_own_descriptors(rig):
    links = rig.text("shell", "readlink /proc/self/fd/3 /proc/self/fd/4 /proc/self/fd/5 || true")
    assert "socket" not in links


def test_refusals_of_a_production_build(rig):
    assert "adbd cannot run as root in production builds" in said(rig.run("root"))
    assert "not running as root" in said(rig.run("unroot"))


def test_push_and_pull_of_a_tree(rig, tmp_path):
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "empty").write_bytes(b"")
    (tree / "a" / "text").write_text("x" * 70_000)
    (tree / "a" / "b" / "run").write_bytes(os.urandom(200_000))
    (tree / "a" / "b" / "run").chmod(0o755)
    for number in range(40):
        (tree / f"small{number}").write_bytes(b"s" * number)
    rig.text("shell", f"mkdir -p {TMP}/t")
    rig.text("push", str(tree), f"{TMP}/t/")
    rig.text("pull", f"{TMP}/t/tree", str(tmp_path / "back"))
    assert subprocess.run(["diff", "-r", tree, tmp_path / "back"], check=False).returncode == 0


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "file"
    made.write_bytes(b"x" * 300_000)
    return made


def test_an_existing_file_is_replaced(rig, tmp_path):
    for content in (b"long long long", b"short"):
        (tmp_path / "file").write_bytes(content)
        rig.text("push", str(tmp_path / "file"), f"{TMP}/t/file")
    assert rig.text("shell", f"cat {TMP}/t/file") == "short"


@needs_namespaces  # read-only /system
def test_errors_are_worded_as_a_phone_does(rig, file, tmp_path):
    rig.text("shell", f"mkdir -p {TMP}/t; echo x > {TMP}/t/file; chmod 000 {TMP}/t/file")
    for command, *words in (
        (("pull", f"{TMP}/t/nothing", str(tmp_path / "back")), "failed to stat remote object", "No such file or dir"),
        (("push", str(file), "/proc/nothing/file"), "remote"),
        (("push", str(file), f"{TMP}/t/file/below"), "Not a directory"),
    ):
        refused = rig.run(*command)
        assert refused.returncode == 1
        assert all(word in said(refused) for word in words)
    # A push that failed leaves the stream in order for the next request.
    assert rig.run("push", str(file), f"{TMP}/t/good").returncode == 0


class Echo:
    """A server on the host that answers what it hears, in capitals."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data.upper())

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(HANG_S)


@pytest.fixture
def echo():
    made = Echo()
    yield made
    made.close()


@needs_namespaces  # toybox' nc
def test_reverse_reaches_the_host(rig, echo):
    port = rig.text("reverse", "tcp:0", f"tcp:{echo.port}").strip()
    assert f"tcp:{port} tcp:{echo.port}" in rig.text("reverse", "--list")
    # Whoever has closed by then hears no answer.
    patient = f"mkdir -p {TMP}/t; cd {TMP}/t; : >heard; (echo hello; until [ -s heard ]; do sleep 0.02; done)"
    assert rig.text("shell", f"{patient} | nc 127.0.0.1 {port} >heard; cat heard") == "HELLO\n"
    rig.text("reverse", "--remove", f"tcp:{port}")
    assert port not in rig.text("reverse", "--list")
    gone = rig.run("reverse", "--remove", f"tcp:{port}")
    assert gone.returncode == 1
    assert "not found" in said(gone)


def test_reverse_does_not_rebind_when_told(rig):
    rig.text("reverse", "tcp:0", "tcp:1")
    port = rig.text("reverse", "--list").split()[1]
    kept = rig.run("reverse", "--no-rebind", port, "tcp:2")
    assert kept.returncode == 1
    assert "cannot rebind" in said(kept)
    rig.text("reverse", port, "tcp:3")
    assert f"{port} tcp:3" in rig.text("reverse", "--list")
    rig.text("reverse", "--remove-all")
    assert rig.text("reverse", "--list").strip() == ""


def test_forward_carries_a_megabyte_both_ways(rig, echo):
    # phone -> host through reverse, host -> phone through forward: both directions of a socket stream at once.
    back = rig.text("reverse", "tcp:0", f"tcp:{echo.port}").strip()
    local = int(rig.text("forward", "tcp:0", f"tcp:{back}").strip())
    data = b"abcdefgh" * 131_072
    received = bytearray()
    with socket.create_connection(("127.0.0.1", local), timeout=HANG_S) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        while len(received) < len(data):
            piece = connection.recv(1 << 20)
            assert piece, f"closed after {len(received)} bytes"
            received += piece
        sender.join(HANG_S)
    assert bytes(received) == data.upper()
    rig.text("forward", "--remove", f"tcp:{local}")
    rig.text("reverse", "--remove-all")


def test_a_closed_port_ends_at_once(rig):
    local = int(rig.text("forward", "tcp:0", "tcp:9").strip())
    with socket.create_connection(("127.0.0.1", local), timeout=HANG_S) as connection:
        assert connection.recv(10) == b""
    rig.text("forward", "--remove", f"tcp:{local}")


def test_many_shells_at_once(rig):
    runs = [
        subprocess.Popen(
            [rig.adb.binary, "-s", rig.serial, "shell", f"echo {number}; exit {number}"],
            env=rig.adb.environment,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        for number in range(20)
    ]
    for number, run in enumerate(runs):
        out, _ = run.communicate(timeout=HANG_S)
        assert (run.returncode, out) == (number, f"{number}\n".encode())
