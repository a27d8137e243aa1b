"""Programs of the lab host that reach into the lab: `uhubctl`, and `usb-power` for power by command template.

LAB/bin/uhubctl -l 1-4 -p 2 -a cycle
LAB/bin/usb-power off|on 1-4.2
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from farm.simulation.control import CONTROL_SOCKET

if TYPE_CHECKING:
    from pathlib import Path

BIN = "bin"
_PROGRAM = """\
import json, socket, sys
lab = socket.socket(socket.AF_UNIX)
try:
    lab.connect(sys.argv[1])
    order = {"id": 1, "do": sys.argv[2], "arguments": sys.argv[3:]}
    lab.sendall(json.dumps(order).encode() + b"\\n")
    reply = json.loads(lab.makefile("rb").readline())
except (OSError, ValueError) as error:
    sys.exit(f"the lab does not answer: {error}")
if not reply["ok"]:
    sys.exit(reply["error"]["message"])
sys.stdout.write(reply["value"]["out"])
sys.stderr.write(reply["value"]["err"])
sys.exit(reply["value"]["code"])
"""


def write_host_programs(lab: Path) -> None:
    """Put them into the lab's folder `bin`."""
    folder = lab / BIN
    folder.mkdir(parents=True, exist_ok=True)
    body = folder / ".ask_lab.py"
    body.write_text(_PROGRAM, "utf-8")
    words = [sys.executable, "-I", "-S", str(body), str(lab / CONTROL_SOCKET)]
    for name, action in (("uhubctl", "uhubctl"), ("usb-power", "usb_power")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec {shlex.join([*words, action])} "$@"\n', "utf-8")
        program.chmod(0o755)
