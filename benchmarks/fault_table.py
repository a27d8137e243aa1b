"""The fault matrix as data: what goes wrong with phones, what the farm makes of it, and what is promised in seconds.

One row is one `Fault`. `tests/acceptance/test_fault_matrix.py` asserts outcome and order of events, and
`make bench NAME=faults` measures the seconds and writes docs/faults.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from benchmarks import fault_steps as do
from benchmarks.fault_steps import BUNDLES, RUN, Step, farm, lab, shell, spinning

READY = "ready"


class Stage(StrEnum):
    """What a fault needs."""

    PHONE = "phone"  # any phone
    ROOTED = "rooted"  # its shell is root: the kernel log can be read
    USER = "user"  # a stock TVM client that works with it
    HUB = "hub"  # its port and its hub can be switched, and a neighbour is there
    FARM = "farm"  # nothing else may be going on: it hits every phone


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Events are written `KIND` or `KIND ~ REGEX` (what it says must match); others may happen between them.
    """

    name: str
    do: tuple[Step, ...]  # the clock starts before it
    seen: tuple[str, ...]  # events in order, all of them before `undo`
    noticed_by: str  # who made the first event happen
    stage: Stage = Stage.PHONE
    slow: bool = False  # tried in the benchmark only
    before: tuple[Step, ...] = ()  # what must be so first
    meanwhile: str = ""  # the phone's state while the fault lasts, if it lasts
    undo: tuple[Step, ...] = ()  # what a person does, or the world; () it heals by itself, or is nothing to heal
    undone_by: str = ""  # that in words
    then: tuple[str, ...] = ()  # events in order after `undo`
    actions: tuple[str, ...] = ()  # of recovery, in order; one that is repeated is named once
    check: tuple[Step, ...] = ()  # what must be so in the end; raises when it is not
    goal_s: float | None = None  # until it is ready again, since the fault, or since `undo` when there is one
    spares: bool = True  # whether the bystander's session must live through it
    repeats: int = 1  # in the benchmark
    tidy: tuple[Step, ...] = ()  # afterwards, whatever came of it


_FOLLOWER = "follower"  # the shell on the phone that waits for the server's end
_LIST = "adb's list"
_PROBE = "probe"
_CHECK = "golden check"
_GATE = "gate"
_WATCHER = "adb watcher"
_NOBODY = "nobody: it does no harm"

FAULTS: tuple[Fault, ...] = (
    # -- the server and its files --
    Fault(
        "RPC server crashes", (lab("server_crash"),),
        ("device.starting ~ died of signal 9", "recovery.action ~ restart-server", "device.checking", "device.ready"),
        _FOLLOWER, actions=("restart-server",), goal_s=2.0, repeats=5,
    ),
    Fault(
        "RPC server ended by a user (SIGTERM)", (shell(f"kill $(sed -n s/^pid=//p {RUN})"),),
        ("device.starting ~ RPC server", "device.ready"), _FOLLOWER, actions=("restart-server",), goal_s=2.0, repeats=3,
    ),
    Fault(
        "RPC server dies four times in a row",
        (do.crash_and_wait, do.crash_and_wait, do.crash_and_wait, lab("server_crash")),
        ("device.starting ~ signal 9", *("device.ready", "device.recovering") * 3, "device.ready"),
        _FOLLOWER, actions=("restart-server", "re-push"),
    ),
    Fault(
        "its supervisor is killed", (shell(f"kill -9 $(sed -n s/^PPid://p /proc/$(sed -n s/^pid=//p {RUN})/status)"),),
        ("device.starting ~ supervisor-killed", "device.ready"), _FOLLOWER, actions=("restart-server",), goal_s=2.0,
        repeats=3,
    ),
    Fault(
        "RPC server hangs (SIGSTOP)", (lab("server_hang"), do.used),
        ("session.ended", "recovery.action ~ reap", "device.ready", "session.opened"), _GATE, stage=Stage.USER,
        before=(do.client_there, do.note_server), actions=("reap",), check=(do.other_server,), tidy=(do.drop_client,),
    ),
    Fault(
        "a library of the bundle is corrupted, and the server crashes",
        (shell(f"for f in {BUNDLES}/*/libtvm_runtime.so; do dd if=/dev/zero of=$f bs=4096 count=8 conv=notrunc; done"),
         lab("server_crash")),
        ("device.starting", "recovery.action ~ re-push", "device.provisioning", "device.ready"),
        "start", actions=("restart-server", "re-push"),
    ),
    Fault(
        "a library of the bundle is deleted, and the server crashes",
        (shell(f"rm {BUNDLES}/*/libtvm_ffi.so"), lab("server_crash")),
        ("device.starting", "recovery.action ~ re-push", "device.provisioning", "device.ready"),
        "start", actions=("restart-server", "re-push"),
    ),
    Fault(
        "the server's program is truncated, and the server crashes",
        (shell(f"for f in {BUNDLES}/*/tvm_rpc; do rm $f; : >$f; chmod 700 $f; done"), lab("server_crash")),
        ("device.starting", "recovery.action ~ re-push", "device.provisioning", "device.ready"),
        "start", actions=("restart-server", "re-push"),
    ),
    Fault(
        "the farm's folder is erased, and the server crashes",
        (shell("rm -rf /data/local/tmp/farm"), lab("server_crash")),
        ("device.provisioning", "device.starting", "device.ready"), "start", actions=("restart-server", "re-push"),
    ),
    Fault(
        "/data fills up while it is ready", (lab("full_disk"),),
        ("device.finding ~ data-full", "device.quarantined ~ /data has"), _PROBE, meanwhile="quarantined",
        undo=(lab("free_disk"),), undone_by="files removed", then=("device.ready",), actions=("quarantine",),
    ),
    Fault(
        "/data is full when the bundle must be pushed",
        (lab("full_disk", free_bytes=1_000_000), shell(f"rm -rf {BUNDLES}/*"), lab("server_crash")),
        ("device.recovering ~ MiB are needed",), "push", undo=(lab("free_disk"),), undone_by="files removed",
        then=("device.ready",), actions=("restart-server", "re-push"),
    ),
    # -- sessions --
    Fault(
        "kernel ignores SIGTERM, session past its timeout", (),  # `before` lasted until then
        ("session.ended", "recovery.action ~ reap", "device.ready"), _GATE, stage=Stage.USER,
        before=spinning("ignore_sigterm", do.SESSION_TIMEOUT_S), actions=("reap",), goal_s=2.0, repeats=3,
        tidy=(do.drop_client,),
    ),
    Fault(
        "kernel spins, an operator ends the lease", (farm("lease", "kick", "{}"),),
        ("session.ended", "recovery.action ~ reap", "device.ready"), "operator", stage=Stage.USER,
        before=spinning("ignore_sigterm"), actions=("reap",), goal_s=2.0, tidy=(do.drop_client,),
    ),
    Fault(
        "client dies in the middle of a kernel", (do.drop_client,),
        ("session.ended", "recovery.action ~ reap", "device.ready"), _GATE, stage=Stage.USER,
        before=spinning("ignore_sigterm"), actions=("reap",), goal_s=2.0,
    ),
    Fault(
        "a process survives SIGKILL (stuck in a driver)", (do.drop_client,),
        ("session.ended", "recovery.action ~ reap", "recovery.ended ~ reap.*failed", "recovery.action ~ reboot",
         "device.gone", "device.ready"), "reaper", stage=Stage.USER,
        before=spinning("unkillable", seconds=30.0), actions=("reap", "reboot"), goal_s=10.0,
    ),
    Fault(
        "a session's process segfaults", (shell(f"kill -SEGV $(pgrep -P $(sed -n s/^pid=//p {RUN}))"),),
        ("session.ended", "recovery.action ~ reap", "device.ready"), _GATE, stage=Stage.USER,
        before=(do.client_there, do.opened()), actions=("reap",), tidy=(do.drop_client,),
    ),
    Fault(
        "kernels give wrong numbers", (lab("wrong_numbers"), lab("server_crash")),
        ("device.starting", "device.checking", "recovery.action ~ re-push", "device.quarantined ~ wrong"), _CHECK,
        meanwhile="quarantined", undo=(lab("good_kernels"), farm("device", "release", "{}")),
        undone_by="a person releases it", then=("device.ready",), actions=("restart-server", "re-push", "quarantine"),
        tidy=(lab("good_kernels"),),
    ),
    Fault(
        "GPU driver reports a page fault", (lab("gpu_fault"),),
        ("device.finding ~ gpu-fault", "recovery.action ~ restart-server", "device.checking", "device.ready"), _PROBE,
        stage=Stage.ROOTED, actions=("restart-server",),
    ),
    # -- the link --
    Fault(
        "unplugged and replugged", (lab("unplug"),), ("device.gone",), _LIST, before=(do.note_server,),
        meanwhile="gone", undo=(lab("plug"),), undone_by="replug", then=("device.identifying", "device.ready"),
        check=(do.same_server,), goal_s=5.0, repeats=5,
    ),
    Fault(
        "comes back under another serial", (do.taken_away,), ("device.gone",), _LIST, meanwhile="gone",
        undo=(do.put_elsewhere,), undone_by="booted at another port", then=("device.ready",), check=(do.other_serial,),
        goal_s=5.0,
    ),
    Fault(
        "two phones of a hub come back under each other's serials", (do.swapped,), ("device.gone",), _LIST,
        stage=Stage.HUB, meanwhile="gone", undo=(do.plug_both,), undone_by="replug", then=("device.ready",),
        before=(do.note_serial,), check=(do.other_serial,), goal_s=5.0, tidy=(do.plug_both, do.swapped_back),
    ),
    Fault(
        "offline: the handshake is never finished", (lab("offline", mode="offline"),), ("device.offline",), _LIST,
        undo=(lab("plug"),), undone_by="replug", then=("device.ready",), goal_s=5.0,
    ),
    Fault(
        "offline: listed as usable, answers nothing", (lab("offline", mode="silent"),),
        ("device.recovering ~ answers no command", "recovery.action ~ reconnect"), _PROBE, undo=(lab("plug"),),
        undone_by="replug", then=("device.ready",), actions=("reconnect",), slow=True,
    ),
    Fault(
        "offline: closes whatever is opened", (lab("offline", mode="refuse"), lab("server_crash")),
        ("device.recovering",), _FOLLOWER, undo=(lab("plug"),), undone_by="replug", then=("device.ready",),
        actions=("restart-server",),
    ),
    Fault(
        "offline until its port's power is cycled", (lab("dead_battery"), lab("offline", mode="offline")),
        ("device.offline", "recovery.action ~ reconnect", "recovery.action ~ power-cycle", "device.ready"), _LIST,
        stage=Stage.HUB, actions=("reconnect", "power-cycle"), slow=True, tidy=(lab("dead_battery", on=False),),
    ),
    Fault(
        "unauthorized", (lab("unauthorized"),), ("device.unauthorized",), _LIST, meanwhile="unauthorized",
        undo=(do.accepted,), undone_by="a person accepts the key", then=("device.ready",), goal_s=5.0,
    ),
    Fault(
        "slow link (1 MB/s, 50 ms)", (lab("slow", bytes_per_s=1e6, latency_s=0.05), lab("server_crash")),
        ("device.starting", "device.ready"), _FOLLOWER, actions=("restart-server",), tidy=(lab("fast"),),
    ),
    Fault(
        "cable pulled in the middle of a push",
        (shell(f"rm -rf {BUNDLES}/*"), lab("cut_push", after_bytes=500_000, replug_after_s=0.5), lab("server_crash")),
        ("device.provisioning", "device.gone", "device.identifying", "device.ready"), _LIST,
        actions=("restart-server", "re-push"),
    ),
    Fault(
        "a USB port loses its power", (lab("port_off"),), ("device.gone",), _LIST, stage=Stage.HUB, meanwhile="gone",
        undo=(lab("port_on"),), undone_by="power is back", then=("device.ready",), goal_s=5.0,
    ),
    Fault(
        "a hub loses its cable", (do.unplug_hub,), ("hub.lost ~ 1-4",), _LIST, stage=Stage.HUB,
        meanwhile="gone", undo=(do.plug_hub,), undone_by="replug", then=("hub.back", "device.ready"), goal_s=5.0,
        tidy=(do.plug_hub,),
    ),
    Fault(
        "an operator cycles its port's power", (farm("device", "power-cycle", "{}"),),
        ("recovery.action ~ power-cycle", "device.gone", "device.ready"), "operator", stage=Stage.HUB,
        actions=("power-cycle",),
    ),
    Fault(
        "airplane mode on a phone reached over the network", (lab("network"), lab("airplane")), ("device.gone",), _LIST,
        meanwhile="gone", undo=(lab("airplane", on=False),), undone_by="a person ends it", then=("device.ready",),
        goal_s=5.0, tidy=(lab("airplane", on=False), lab("network", on=False)),
    ),
    # -- boots and power --
    Fault(
        "reboots by itself", (lab("reboot"),), ("device.gone", "device.identifying", "device.ready"), _LIST,
        goal_s=5.0, repeats=3,
    ),
    Fault(
        "an operator reboots it", (farm("device", "reboot", "{}"),),
        ("recovery.action ~ reboot", "device.gone", "device.ready"), "operator", actions=("reboot",),
    ),
    Fault(
        "boot loop (three boots of 1 s)", (lab("boot_loop", boots=3, up_s=1.0),),
        ("device.gone", "device.identifying", "device.gone", "device.identifying", "device.ready"), _LIST,
    ),
    Fault(
        "boot hangs", (lab("boot_hang", boots=1), lab("reboot")), ("device.gone",), _LIST, meanwhile="gone",
        undo=(do.is_on, lab("reboot")), undone_by="a person restarts it", then=("device.ready",),
    ),
    Fault(
        "power cut", (lab("power_cut"),), ("device.gone",), _LIST, meanwhile="gone", undo=(lab("boot"),),
        undone_by="switched on", then=("device.ready",), goal_s=5.0,
    ),
    # -- sensors, heat, battery --
    Fault(
        "every shell begins 1 s late",
        (lab("slow_shell", delay_s=1.0), lab("battery", level=77), do.probed("battery_percent", lambda now: now == 77)),
        (), _NOBODY, meanwhile=READY, undo=(lab("slow_shell", delay_s=0.0),), undone_by="it is quick again",
    ),
    Fault(
        "skin 41 °C: above the limit for bench", (lab("heat", skin_c=41.2),),
        ("device.cooling ~ bench.*above 38",), _PROBE, meanwhile=READY, undo=(lab("cool"),), undone_by="it cools",
        then=("device.cool ~ bench",),
    ),
    Fault(
        "skin 45 °C: above the limit for tune", (lab("heat", skin_c=45.0),),
        ("device.cooling ~ bench.*tune",), _PROBE, meanwhile=READY, undo=(lab("cool"),), undone_by="it cools",
        then=("device.cool",),
    ),
    Fault(
        "skin 51 °C: above the hard limit", (lab("heat", skin_c=51.0),), ("device.cooling ~ interactive",), _PROBE,
        meanwhile="cooling", undo=(lab("cool"),), undone_by="it cools", then=("device.cool",),
    ),
    Fault(
        "battery overheats", (lab("wear", cycles=10, full_share=1.0, health="overheat"),),
        ("device.finding ~ battery-hot", "device.quarantined ~ too hot"), _PROBE, meanwhile="quarantined",
        undo=(lab("wear", cycles=10, full_share=1.0, health="good"),), undone_by="it cools", then=("device.ready",),
        actions=("quarantine",), tidy=(lab("wear", cycles=10, full_share=1.0, health="good"),),
    ),
    Fault(
        "battery is dead, says the phone", (lab("wear", cycles=900, full_share=0.9, health="dead"),),
        ("device.finding ~ battery-bad", "device.quarantined ~ dead"), _PROBE, meanwhile="quarantined",
        undo=(lab("wear", cycles=10, full_share=1.0, health="good"), farm("device", "release", "{}")),
        undone_by="a new battery, and a person releases it", then=("device.ready",), actions=("quarantine",),
        tidy=(lab("wear", cycles=10, full_share=1.0, health="good"),),
    ),
    Fault(
        "battery is over its voltage (a sign of swelling)",
        (lab("wear", cycles=900, full_share=0.9, health="over_voltage"),),
        ("device.finding ~ battery-bad", "device.quarantined ~ over voltage"), _PROBE, meanwhile="quarantined",
        undo=(lab("wear", cycles=10, full_share=1.0, health="good"), farm("device", "release", "{}")),
        undone_by="a new battery, and a person releases it", then=("device.ready",), actions=("quarantine",),
        tidy=(lab("wear", cycles=10, full_share=1.0, health="good"),),
    ),
    Fault(
        "battery is at 5 %, and the phone does not charge",
        (lab("battery", level=5, charging=False), do.probed("battery_percent", lambda now: now == 5)),
        ("device.finding ~ battery-low",), _PROBE, meanwhile=READY, undo=(lab("battery", level=100, charging=True),),
        undone_by="it charges", then=("device.finding_over ~ battery-low",),
    ),
    Fault(
        "clocks are stuck at half", (lab("clock_stuck", share=0.5),), ("device.finding ~ clock-held",), _PROBE,
        meanwhile=READY, undo=(lab("clock_stuck", share=1.0),), undone_by="a person ends it",
        then=("device.finding_over ~ clock-held",),
    ),
    Fault(
        "a reboot that adb did not notice (another boot id)", (do.other_boot_id,),
        ("device.finding ~ rebooted", "recovery.action ~ restart-server", "device.ready"), _PROBE,
        actions=("restart-server",), slow=True,
    ),
    # Last of its phone: sections of the probe in which a phone got stuck are left out for ten minutes.
    Fault(
        "dumpsys hangs", (lab("dumpsys_hangs"), do.pause(25.0)), (), "nobody: probes work without it", meanwhile=READY,
        undo=(lab("dumpsys_hangs", on=False),), undone_by="services answer again", slow=True,
    ),
    Fault(
        "something else keeps the phone busy",
        (lab("cpu_load", load=3.4), shell(do.KEEP_BUSY)),
        ("device.finding ~ foreign-load",), _PROBE, stage=Stage.FARM, slow=True, meanwhile=READY,
        undo=(lab("cpu_load", load=0.4), shell(f"kill -9 $(cat {do.BUSY}); rm {do.BUSY}")),
        undone_by="a person ends it", then=("device.finding_over ~ foreign-load",),
    ),
    # -- the host --
    Fault(
        "adb server killed", (do.adb_killed,), ("device.gone", "device.ready"), _WATCHER,
        stage=Stage.FARM, before=(do.note_servers,), check=(do.same_servers,), goal_s=10.0, spares=False, repeats=3,
    ),
    Fault(
        "adb server hangs for 2 s beside leases", (do.adb_stopped, do.pause(2.0), do.adb_resumed), (), _NOBODY,
        stage=Stage.FARM, check=(do.same_adb,),
    ),
    Fault(
        "adb server hangs for good beside leases", (do.adb_stopped,),
        ("adb.hangs", "adb.lost", "device.gone", "device.ready"), _WATCHER, stage=Stage.FARM,
        before=(do.note_servers,), check=(do.same_servers,), spares=False, slow=True,
    ),
    Fault(
        "adb server hangs for good, nobody has a lease", (do.adb_stopped,),
        ("adb.lost", "device.gone", "device.ready"), _WATCHER, stage=Stage.FARM,
        before=(do.bystander_rests, do.note_servers), check=(do.same_servers, do.bystander_returns), spares=False,
        tidy=(do.bystander_returns,),
    ),
    Fault(
        "somebody's adb server on the farm's socket", (do.foreign_server,),
        ("device.gone", "device.ready"), _WATCHER, stage=Stage.FARM, before=(do.note_servers,),
        check=(do.own_adb, do.same_servers), spares=False,
    ),
    Fault(
        "the checker (TVM's process) is killed, and a server crashes", (do.checker_killed, lab("server_crash")),
        ("device.starting", "device.checking", "device.ready"), _FOLLOWER, stage=Stage.FARM,
        actions=("restart-server",),
    ),
    Fault(
        "daemon killed", (do.daemon_killed,), ("daemon.started", "device.ready"), "systemd", stage=Stage.FARM,
        spares=False,
    ),
)  # fmt: skip
