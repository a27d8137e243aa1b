"""A phone's folder on this host: the device scripts beside a server of a few lines that behaves as it is told."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.needs import need
from tests.support.waiting import HANG_S
from tests.support.whole_farm import until

SCRIPTS = Path(__file__).resolve().parents[3] / "device_scripts"

# Binds nothing: the scripts only read its words and watch its processes. What it does is in $PLAY, one order a line.
SERVER = f"""#!{sys.executable} -I
import os, pathlib, shutil, signal, sys, time

def say(text):
    sys.stderr.write(text + "\\n")
    sys.stderr.flush()

options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[2:])
say("[14:28:48] /workspace/apps/cpp_rpc/main.cc:96: host = " + options["host"])
play = pathlib.Path(os.environ["PLAY"]).read_text().split()
if "die-early" in play:
    say("CANNOT LINK EXECUTABLE: library libtvm_runtime.so not found")
    sys.exit(7)
if "remove-own-files" in play:
    shutil.rmtree(pathlib.Path(options["work-dir"]).parent)
port = "-1" if "no-port" in play else options["port"]
say(f"[14:28:48] /workspace/apps/cpp_rpc/rpc_server.cc:129: Bind to {{options['host']}}:{{port}}")
if "flood" in play:
    line = "x" * 99
    for number in range(30000):
        say(line)
    pathlib.Path(options["work-dir"], "flooded").touch()
children = []
for order in play:
    if order.startswith("session"):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if order == "session-own-group":
                os.setpgid(0, 0)
            if order == "session-with-child" and os.fork() == 0:
                while True:
                    signal.pause()
            pathlib.Path(options["work-dir"], f"{{order}}-{{os.getpid()}}").touch()
            while True:
                signal.pause()
        children.append(child)
while children:
    children.remove(os.wait()[0])
while True:
    signal.pause()
"""


@dataclass(frozen=True)
class PhoneFolder:
    """One root with bin/, bundles/ and run/, and the shell world its scripts run in."""

    root: Path
    shell: tuple[str, ...]
    path: str  # $PATH of that world

    def play(self, *orders):
        """What the next server does."""
        (self.root.parent / "play").write_text("\n".join(orders))

    def command(self, *arguments, script="rpc_supervise.sh"):
        return [*self.shell, str(self.root / "bin" / script), *arguments]

    def environment(self, secret=""):
        return {"PATH": self.path, "PLAY": str(self.root.parent / "play"), "FARM_SECRET": secret}

    def run(self, *arguments, script="rpc_supervise.sh", secret=""):
        done = subprocess.run(
            self.command(*arguments, script=script),
            env=self.environment(secret),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        return done.returncode, done.stdout + done.stderr

    def start(self, secret="one"):
        code, said = self.run("start", "b1", sha(secret), "5000", "5010", secret=secret)
        assert code == 0, said
        return said

    def follow(self, secret="one"):
        """A follower, as a second shell over adb is; returns once it follows."""
        follower = subprocess.Popen(
            self.command("follow", sha(secret)[:16]),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert follower.stdout.readline() == f"following {sha(secret)[:16]}\n"
        return follower

    def state(self):
        lines = (self.root / "run" / "state").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def status(self, secret="one", bundle="b1"):
        code, said = self.run("status", bundle, sha(secret))
        assert code == 0
        return dict(line.split("=", 1) for line in said.splitlines())

    def work_file(self, pattern):
        """A file the server makes in its work folder, once it is there."""
        found = []
        until(lambda: bool(found.extend(self.root.glob(f"run/work.*/{pattern}")) or found))
        return found[0]


def sha(secret):
    return hashlib.sha256(secret.encode()).hexdigest()


def alive(pid):
    """Whether the process runs: a zombie that nobody has reaped yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


OF_THE_HOST = (
    "cat", "chmod", "cut", "date", "find", "flock", "grep", "head", "id", "mkdir", "mv", "rm", "setsid", "sha256sum",
    "sleep", "sort", "tail", "uniq", "wc", "xargs",
)  # fmt: skip
PROGRAMS_OF = {"mksh": ("mksh", "toybox"), "dash": ("dash", *OF_THE_HOST)}  # what `make_phone` needs of the host


def shell_here():
    """mksh as on phones, or dash on a host without mksh: `.ci/run` runs the tests on both, and one is enough for each.

    Skips the test on a host with neither.
    """
    if all(map(shutil.which, PROGRAMS_OF["mksh"])):
        return "mksh"
    need(*PROGRAMS_OF["dash"])
    return "dash"


def make_phone(folder, shell, *, without=""):
    """`shell`: mksh (with toybox for everything else), or dash (with this host's programs)."""
    programs = folder / "programs"
    programs.mkdir()
    if shell == "mksh":
        toybox = shutil.which("toybox")
        assert toybox
        for name in names_of(toybox):
            (programs / name).symlink_to(toybox)
    else:
        for name in OF_THE_HOST:
            real = shutil.which(name)
            assert real, name
            (programs / name).symlink_to(real)
    program = shutil.which(shell)
    assert program
    (programs / "sh").symlink_to(program)
    if without:
        (programs / without).unlink()
    root = folder / "farm"
    (root / "bin").mkdir(parents=True)
    for script in SCRIPTS.glob("*.sh"):
        shutil.copy(script, root / "bin")
    server = root / "bundles" / "b1" / "tvm_rpc"
    server.parent.mkdir(parents=True)
    server.write_text(SERVER)
    server.chmod(0o755)
    phone = PhoneFolder(root, (str(programs / "sh"),), str(programs))
    phone.play()
    return phone


@cache
def names_of(toybox):
    """The programs that it is."""
    return subprocess.run([toybox], capture_output=True, text=True, check=True).stdout.split()


def processes_below(root):
    """Living processes that run something of this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(root) in command and alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def end(phone):
    """Stop the phone's server; its supervisor ends right after. What is left in the end is killed, and a failure."""
    phone.run("stop")
    folder = phone.root.parent
    try:
        while left := processes_below(folder):  # looking at all processes of the host is dear: at these only
            until(lambda: not any(map(alive, left)))
    finally:
        for pid in processes_below(folder):
            os.kill(pid, 9)
