"""Device scripts run by the shells that run them, in a folder like farm's on a phone, over a /sys of plain files."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from farm.devices.server.phone_paths import scripts_folder
from tests.support.waiting import HANG_S

SHELLS = [shell for shell in ("mksh", "dash", "bash") if shutil.which(shell)]
# A server, in a session of its own, with a session below it.
_SERVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


class ScriptFolder:
    """Some of the scripts in `bin`; programs in `tools` come before the system's."""

    def __init__(self, shell, folder, *scripts, **environment):
        self.shell, self.folder, self.sys = shell, folder, folder / "sys"
        for name in ("bin", "run", "tools"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("processes.sh", *scripts):
            shutil.copy(scripts_folder() / name, folder / "bin")
        path = f"{folder / 'tools'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "FARM_SYS": str(self.sys), "PATH": path} | environment

    def tool(self, name, body):
        """A program of the phone."""
        (self.folder / "tools" / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.folder / "tools" / name).chmod(0o755)

    def files(self, folder, **texts):
        """Files of the kernel in that folder of /sys."""
        (self.sys / folder).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (self.sys / folder / name).write_text(f"{text}\n")

    def supply(self, name, **texts):
        """A power supply."""
        self.files(f"class/power_supply/{name}", **texts)

    def words(self, script, *words):
        """The command that runs a script."""
        return [self.shell, str(self.folder / "bin" / script), *map(str, words)]

    def run(self, script, *words, code=0, **environment):
        """What the script prints; it complains of nothing."""
        return run(self.words(script, *words), {**self.environment, **environment}, code=code).stdout.decode()

    @contextmanager
    def server(self, session):
        """The state names a living server with a session that runs this Python (it prints a line); its pid."""
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, session],
            start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert process.stdout.readline() == b"up\n"
            (self.folder / "run" / "state").write_text(f"version=1\npid={process.pid}\npgid={process.pid}\n")
            yield int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        finally:
            process.communicate(timeout=HANG_S)


def run(words, environment, cwd=None, code=0):
    """Run a command that ends with that code and complains of nothing."""
    done = subprocess.run(words, env=environment, cwd=cwd, capture_output=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stderr) == (code, b"")
    return done
