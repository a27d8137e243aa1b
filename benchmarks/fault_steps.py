"""What is done to phones, the host and users in the fault matrix, and what must be so: steps over one `Scene`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.fault_scene import Scene, foreign_adb
from farm.simulation.state import new_boot_id, read_state, state_folder, write_state

Step = Callable[[Scene], object]
BUNDLES = "/data/local/tmp/farm/bundles"
RUN = "/data/local/tmp/farm/run/state"
BUSY = "/data/local/tmp/busy"  # process ids of what keeps a phone busy
KEEP_BUSY = f"for n in 1 2 3; do setsid sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 & echo $!; done >{BUSY}"
SESSION_TIMEOUT_S = 1.5  # as a client gives it


def lab(name: str, **arguments: Any) -> Step:
    """A fault of the lab."""
    return lambda scene: scene.fault(name, **arguments)


def shell(command: str) -> Step:
    """A command of somebody with a cable."""
    return lambda scene: scene.shell(command)


def farm(*arguments: str) -> Step:
    """A command of an operator; `{}` is the device."""

    def run(scene: Scene) -> None:
        done = scene.farm.farm(*(each.format(scene.device) for each in arguments))
        assert done.returncode == 0, done

    return run


def crash_and_wait(scene: Scene) -> None:
    """The server dies; wait until another one is in service."""
    began = time.time()
    scene.fault("server_crash")
    scene.recorder.wait(scene.device, began, "device.ready", 0)


def probed(field_name: str, test: Callable[[Any], bool]) -> Step:
    """Wait for what a probe tells in the phone's row."""
    return lambda scene: scene.until(lambda: test(scene.row()[field_name]), f"its {field_name} tells")


def note_server(scene: Scene) -> None:
    """Remember which server runs."""
    scene.notes["server"] = scene.server()


def same_server(scene: Scene) -> None:
    """It is still the server that was noted."""
    assert scene.server() == scene.notes["server"] != "", (scene.server(), scene.notes)


def other_server(scene: Scene) -> None:
    """It is another one."""
    assert scene.server() not in ("", scene.notes["server"])


# -- sessions --


def opened(timeout_s: float = 0.0) -> Step:
    """A stock client opens a session on it."""
    return lambda scene: scene.client().must("open", key=scene.device, timeout_s=timeout_s)


def begin_run(scene: Scene) -> None:
    """The client begins to compute and is not waited for."""
    scene.client().tell("run")


def spinning(kind: str, timeout_s: float = 0.0, **arguments: Any) -> tuple[Step, ...]:
    """A client is in the middle of a kernel that does not end; later kernels are good."""

    def spin(scene: Scene) -> None:
        scene.until(scene.spins, "the kernel spins")
        scene.fault("good_kernels")

    return (client_there, lab(kind, **arguments), opened(timeout_s), begin_run, spin)


def client_there(scene: Scene) -> None:
    """Have a client that has imported TVM, before anything is timed."""
    scene.client()


def used(scene: Scene) -> None:
    """The next client gets right numbers: it asks again when its first session does not open."""
    client = scene.client()
    for order in ({"do": "open", "key": scene.device}, {"do": "run"}, {"do": "close"}):
        client.must(**order)


def drop_client(scene: Scene) -> None:
    """The user's program dies."""
    scene.drop_client()


# -- the host --


def adb_killed(scene: Scene) -> None:
    """The adb server dies as by the out-of-memory killer."""
    os.kill(scene.adb_server(), signal.SIGKILL)


def adb_stopped(scene: Scene) -> None:
    """The adb server hangs: it has connections and does nothing."""
    scene.notes["adb"] = scene.adb_server()
    os.kill(scene.notes["adb"], signal.SIGSTOP)


def adb_resumed(scene: Scene) -> None:
    """It continues."""
    os.kill(scene.notes["adb"], signal.SIGCONT)


def same_adb(scene: Scene) -> None:
    """It was not replaced."""
    assert scene.adb_server() == scene.notes["adb"]


def pause(seconds: float) -> Step:
    """Let a fault last that long: it is the length that matters, nothing is waited for."""
    return lambda _: time.sleep(seconds)


def foreign_server(scene: Scene) -> None:
    """Another user's adb program has started a server on the farm's socket."""
    scene.keep(foreign_adb(scene, scene.farm.folder / "stranger"))


def daemon_killed(scene: Scene) -> None:
    """`kill -9` of the daemon, and systemd starts it again."""
    scene.farm.daemon.kill()
    scene.farm.daemon.start().close()


def checker_killed(scene: Scene) -> None:
    """The process that imports TVM for checks and jobs dies."""
    daemon = psutil.Process(scene.farm.status()["pid"])
    for child in daemon.children():
        if "farm.worker.zygote" in child.cmdline():
            child.kill()


# -- the link --


def unplug_hub(scene: Scene) -> None:
    """The cable of the hub."""
    scene.lab.unplug_hub("1-4")


def plug_hub(scene: Scene) -> None:
    """It is back."""
    scene.lab.plug_hub("1-4")


def taken_away(scene: Scene) -> None:
    """The phone is switched off and taken away."""
    scene.lab.remove(scene.phone)


def put_elsewhere(scene: Scene) -> None:
    """It is switched on and plugged in at another port: adb lists it under another serial."""
    scene.lab.add(scene.phone, scene.profile)


def other_serial(scene: Scene) -> None:
    """It is known by its name under its new serial."""
    before, scene.serial = scene.serial, scene.lab.phone(scene.phone).serial
    serial = scene.row()["serial"]
    assert serial == scene.serial != before, f"{serial}, not {scene.serial}; it was {before}"


def swapped(scene: Scene) -> None:
    """It and its neighbour are pulled out; each will be listed as the other was."""
    for phone in (scene.phone, scene.neighbour):
        scene.lab.unplug(phone)
    scene.lab.swap(scene.phone, scene.neighbour)


def plug_both(scene: Scene) -> None:
    """Both cables are in again."""
    for phone in (scene.phone, scene.neighbour):
        scene.lab.plug(phone)


def swapped_back(scene: Scene) -> None:
    """Each phone is listed as it was before."""
    if scene.lab.phone(scene.phone).serial != scene.notes["serial"]:
        swapped(scene)
        plug_both(scene)
    scene.serial = scene.notes["serial"]


def note_serial(scene: Scene) -> None:
    """Remember what adb calls it."""
    scene.notes["serial"] = scene.lab.phone(scene.phone).serial


def is_on(scene: Scene) -> None:
    """It is on, whether adb sees it or not."""
    scene.lab.wait(scene.phone, "on")


def accepted(scene: Scene) -> None:
    """The person at the phone accepts the farm's key."""
    scene.lab.wait(scene.phone, "key_shown")
    scene.fault("accept")


def other_boot_id(scene: Scene) -> None:
    """What the phone says of its boot changes, and nothing else."""
    folder = Path(scene.lab.phone(scene.phone).directory)
    state = replace(read_state(state_folder(folder)), boot_id=new_boot_id())
    (folder / "proc" / "boot_id").write_text(f"{state.boot_id}\n")
    write_state(folder, state)  # else the next change of a sensor brings the old one back: another reboot


def note_servers(scene: Scene) -> None:
    """Remember which server runs on each phone."""
    scene.notes["servers"] = scene.servers()


def same_servers(scene: Scene) -> None:
    """Servers on phones were adopted, not restarted, on every phone; and all of those are ready."""
    scene.until_all_in_service()
    now = scene.servers()
    assert now == scene.notes["servers"], (now, scene.notes["servers"])


def own_adb(scene: Scene) -> None:
    """The adb server is the farm's."""
    assert scene.adb_server()


def bystander_rests(scene: Scene) -> None:
    """Nobody has a lease."""
    assert scene.bystander is not None
    scene.bystander.rest()


def bystander_returns(scene: Scene) -> None:
    """It takes its phone again."""
    assert scene.bystander is not None
    scene.bystander.work()
