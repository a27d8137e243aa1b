"""What probes find wrong with a phone: each rule, its limits, and when a finding is news."""

from dataclasses import replace

import pytest

from farm.devices.health.health_rules import (
    MISSES,
    FindingHistory,
    HealthConfig,
    ModelHealth,
    Situation,
    advance,
    findings,
    has_evidence,
)
from farm.model.health import (
    Battery,
    ClusterReading,
    DeviceFault,
    Dropped,
    FindingKind,
    GpuReading,
    Health,
    ProcessReading,
    ThrottleStatus,
)

K = FindingKind
POLICY = HealthConfig()


def process(pid, name="com.example.game", state="R", ppid=1, share=97.0):
    return ProcessReading(pid, ppid, pid, state, share, 1 << 20, name)


SUPERVISOR = process(100, "sh", "S")
SERVER = process(101, "tvm_rpc", "S", ppid=100)
SESSION = process(102, "tvm_rpc", "R", ppid=101)
CLUSTERS = (
    ClusterReading((0, 1, 2, 3), 1_800_000, 300_000, 1_800_000, 1_800_000, "schedutil"),
    ClusterReading((4, 5, 6, 7), 2_400_000, 700_000, 2_400_000, 2_400_000, "schedutil"),
)
WELL = Health(
    boot_id="boot-1",
    uptime_s=5000.0,
    load_1min=0.3,
    battery=Battery(80, 30.0, 4100, 200.0, "good", "charging", ("usb",), 120, 4_400_000, 4_500_000),
    throttle=ThrottleStatus.NONE,
    gpu=GpuReading(300_000_000, 300_000_000, 700_000_000, 700_000_000, throttled=False),
    cpu=CLUSTERS,
    memory_total_bytes=8_000_000_000,
    memory_available_bytes=4_000_000_000,
    data_total_bytes=100_000_000_000,
    data_free_bytes=50_000_000_000,
    server=(SUPERVISOR, SERVER),
)


def found(now, before=WELL, policy=POLICY, **situation):
    return {each.kind: each for each in findings(now, before, policy, Situation(**situation))}


def but(**changes):
    """A phone that is well but for these."""
    return replace(WELL, **changes)


def battery(**changes):
    return but(battery=replace(WELL.battery, **changes))


def free(megabytes):
    return but(data_free_bytes=megabytes * 10**6)


def serving(*server, **changes):
    return but(server=server, **changes)


def session(**changes):
    return serving(SUPERVISOR, SERVER, replace(SESSION, **changes))


def clocked(max_khz, min_khz=700_000, **changes):
    return but(cpu=(CLUSTERS[0], replace(CLUSTERS[1], max_khz=max_khz, min_khz=min_khz)), **changes)


def gpu(**changes):
    return but(gpu=replace(WELL.gpu, **{"min_hz": 200_000_000, "max_hz": 300_000_000} | changes))


def dropped(sensor, raw):
    return but(dropped=(Dropped("battery", sensor, raw, "why"),))


SAME = object()  # the probe before said the same
STUCK, GAME = session(state="D"), but(load_1min=2.1, busiest=(process(900), process(901, "other", share=3.0)))
BY_TIME = but(boot_id="btime-1790000000")
CLOCK_SET = but(boot_id="btime-1790000007", uptime_s=5010.0)
FAULT = "[ 4999.123456] kgsl kgsl-3d0: GPU PAGE FAULT: addr = 5C0DE000 pid= 77 name=tvm_rpc"
OLD_FAULT = "[    1.000000] kgsl: hang"
FAULTY = but(gpu_faults=(OLD_FAULT, FAULT))
UNREAD = serving(missing=("processes",))
HELD = {"held": True}


@pytest.mark.parametrize(
    ("now", "before", "situation", "kind"),
    [
        (WELL, WELL, {"acknowledged_gpu_faults": ()}, None),
        # What is not known is not wrong.
        (Health(), SAME, {"acknowledged_gpu_faults": ()}, K.SERVER_GONE),
        (Health(missing=("processes",)), None, {"acknowledged_gpu_faults": ()}, None),
        # /data is full, low or well; a full one must become clearly better.
        (free(199), WELL, {}, K.DATA_FULL),
        (free(201), WELL, {}, K.DATA_LOW),
        (free(299), WELL, {"known": (K.DATA_FULL,)}, K.DATA_FULL),
        (free(301), WELL, {"known": (K.DATA_FULL,)}, K.DATA_LOW),
        (free(999), WELL, {}, K.DATA_LOW),
        (free(1001), WELL, {}, None),
        # A process that sat in a driver for two probes is stuck.
        (STUCK, SAME, HELD, K.STUCK_PROCESS),
        (STUCK, WELL, HELD, None),
        (STUCK, session(), HELD, None),  # it ran
        (STUCK, session(state="D", pid=103), HELD, None),  # another one
        (STUCK, replace(STUCK, boot_id="boot-0"), HELD, K.REBOOTED),
        (STUCK, None, HELD, None),
        (session(state="Z"), SAME, {}, K.ZOMBIE),
        # A session that computes for nobody is an orphan; it may have begun with a lease that has just ended.
        (session(), SAME, {}, K.ORPHAN),
        (session(), SAME, HELD, None),
        (session(), WELL, {}, None),
        (serving(SUPERVISOR, replace(SERVER, state="R")), SAME, {}, None),  # the server itself
        # A ready phone without a server for two probes needs one.
        (serving(), SAME, {}, K.SERVER_GONE),
        (serving(), WELL, {}, None),
        (serving(), SAME, {"ready": False}, None),
        (UNREAD, serving(), {}, None),
        (serving(), UNREAD, {}, None),
        # Faults of the GPU since the last check.
        (FAULTY, WELL, {"acknowledged_gpu_faults": (OLD_FAULT,)}, K.GPU_FAULT),
        (FAULTY, WELL, {"acknowledged_gpu_faults": FAULTY.gpu_faults}, None),
        (FAULTY, WELL, {"acknowledged_gpu_faults": None}, None),
        # A reboot behind our back; a boot named by its time is called otherwise when the clock is set.
        (but(boot_id="boot-2", uptime_s=40.0), WELL, {}, K.REBOOTED),
        (but(boot_id="boot-2", uptime_s=40.0), None, {}, None),
        (CLOCK_SET, BY_TIME, {}, None),
        (replace(CLOCK_SET, uptime_s=40.0), BY_TIME, {}, K.REBOOTED),
        (but(boot_id=""), WELL, {}, None),
        # A hot battery must cool by a margin.
        (battery(celsius=55.1), WELL, {}, K.BATTERY_HOT),
        (battery(celsius=54.9), WELL, {}, None),
        (battery(celsius=47.1), WELL, {"known": (K.BATTERY_HOT,)}, K.BATTERY_HOT),
        (battery(celsius=46.9), WELL, {"known": (K.BATTERY_HOT,)}, None),
        (battery(celsius=None, health="overheat"), WELL, {}, K.BATTERY_HOT),
        (battery(health="overheat"), WELL, {}, K.BATTERY_HOT),
        (battery(celsius=-3.5), WELL, {}, K.BATTERY_COLD),
        (battery(health="cold"), WELL, {}, K.BATTERY_COLD),
        (battery(health="dead"), WELL, {}, K.BATTERY_BAD),
        (battery(health="failure"), WELL, {}, K.BATTERY_BAD),
        (battery(health="over-voltage"), WELL, {}, K.BATTERY_BAD),
        # A gauge that says nonsense.
        (dropped("temperature", "-4000"), WELL, {}, K.GAUGE),
        (dropped("battery", "present: false"), WELL, {}, None),
        (battery(percent=0, voltage_mv=4100), WELL, {}, K.GAUGE),
        (battery(percent=0, voltage_mv=3300), WELL, {}, None),
        # A clock that is held down, neither by heat nor by a person.
        (clocked(1_200_000), SAME, {}, K.CLOCK_HELD),
        (clocked(1_200_000), WELL, {}, None),
        (clocked(2_000_000), SAME, {}, None),
        (clocked(1_200_000, throttle=ThrottleStatus.LIGHT), SAME, {}, None),
        (clocked(1_200_000, throttle=None), SAME, {}, None),
        (clocked(1_200_000, min_khz=1_200_000), SAME, {}, None),
        (gpu(), SAME, {}, K.CLOCK_HELD),
        (gpu(throttled=True), SAME, {}, None),
        (gpu(min_hz=300_000_000), SAME, {}, None),
        # A foreign process that runs all the time; our own session is none.
        (GAME, SAME, HELD, K.FOREIGN_LOAD),
        (GAME, SAME, {"in_hands": True}, None),
        (GAME, WELL, {}, None),
        (replace(GAME, load_1min=1.4), GAME, {}, None),
        (replace(GAME, busiest=(process(901, "system_server", share=9.0),)), SAME, {}, None),
        (replace(GAME, busiest=(process(900, state="S"),)), GAME, {}, None),
        (replace(session(), load_1min=4.0, busiest=(SESSION,)), SAME, HELD, None),
    ],
)
def test_what_is_found(now, before, situation, kind):
    assert list(found(now, now if before is SAME else before, **situation)) == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("now", "kind", "fault", "cause"),
    [
        (free(12), K.DATA_FULL, DeviceFault.STORAGE, "/data has 12 MB left, 200 MB are needed"),
        (free(900), K.DATA_LOW, None, "/data has 900 MB left, less than 1000 MB"),
        (but(memory_available_bytes=180 * 10**6), K.MEMORY_LOW, None, "180 of 8000 MB of memory are available"),
        (STUCK, K.STUCK_PROCESS, DeviceFault.STUCK, "process 102 hangs in a driver (state D)"),
        (session(), K.ORPHAN, DeviceFault.STUCK, "process 102 of a session that ended continues computing"),
        (session(state="Z"), K.ZOMBIE, None, "process 102 ended and was not reaped (state Z)"),
        (serving(), K.SERVER_GONE, DeviceFault.SERVER, "no tvm_rpc runs on it"),
        (FAULTY, K.GPU_FAULT, DeviceFault.GPU, "the GPU's driver reports a fault"),
        (battery(celsius=60.0), K.BATTERY_HOT, DeviceFault.HOT, "battery too hot: 60.0 °C, above 55 °C"),
        (battery(celsius=-3.5), K.BATTERY_COLD, None, "battery too cold to be charged: -3.5 °C"),
        (battery(health="dead"), K.BATTERY_BAD, DeviceFault.BATTERY, "the phone calls its battery dead"),
        (dropped("temperature", "-4000"), K.GAUGE, None, "battery gauge says temperature=-4000"),
        (clocked(1_200_000), K.CLOCK_HELD, None, "CPU 4-7 held at 1.20 of 2.40 GHz"),
        (gpu(), K.CLOCK_HELD, None, "GPU held at 300 of 700 MHz"),
        (GAME, K.FOREIGN_LOAD, None, "com.example.game keeps the phone busy"),
    ],
)
def test_what_a_finding_says_and_whether_recovery_acts_on_it(now, kind, fault, cause):
    finding = found(now, now, acknowledged_gpu_faults=(OLD_FAULT,))[kind]
    assert (finding.fault, finding.act, finding.cause) == (fault, fault is not None, cause)


def test_figures_are_evidence():
    assert found(FAULTY, acknowledged_gpu_faults=(OLD_FAULT,))[K.GPU_FAULT].evidence == FAULT.partition("] ")[2]
    assert "com.example.game (pid 900, 97 % of a core)" in found(GAME, GAME)[K.FOREIGN_LOAD].evidence
    rebooted = found(but(boot_id="boot-2", uptime_s=40.0))[K.REBOOTED]
    assert rebooted.cause == "it rebooted 40 s ago, and adb did not notice"


@pytest.mark.parametrize(
    ("percent", "status", "powered_by", "hint"),
    [
        (3, "discharging", (), "plug it into a charger or a hub with a power supply"),
        (3, "not-charging", ("usb",), "try another cable, or a charger: its port gives it too little power"),
        (14, "discharging", ("usb",), "try another cable, or a charger: its port gives it too little power"),
        (15, "discharging", (), None),
        (3, "charging", ("usb",), None),
        (None, "discharging", (), None),
    ],
)
def test_a_nearly_empty_battery_that_does_not_charge_is_a_warning(percent, status, powered_by, hint):
    low = found(battery(percent=percent, status=status, powered_by=powered_by)).get(K.BATTERY_LOW)
    assert (low and low.hint) == hint
    if low:
        assert (low.cause, low.act) == (f"battery at {percent} %, and it does not charge", False)


def test_a_model_can_be_exempted():
    policy = HealthConfig(model={"SM-A556B": ModelHealth(ignore=(K.GAUGE,))})
    assert policy.ignored("sm-a556b") == {K.GAUGE}
    assert policy.ignored("SM-A556E") == policy.ignored("") == frozenset()


def test_a_fault_is_over_only_by_a_probe_that_could_tell():
    told = [has_evidence(WELL, fault) for fault in (DeviceFault.HOT, DeviceFault.STORAGE, DeviceFault.BATTERY)]
    assert told == [True, True, False]
    assert not has_evidence(Health(), DeviceFault.HOT)
    assert not has_evidence(Health(), DeviceFault.STORAGE)


# --- the account

HOT = findings(battery(celsius=60.0), WELL, POLICY, Situation())
LOAD = findings(GAME, GAME, POLICY, Situation())


def run(*probes):
    account, steps = FindingHistory(), []
    for each in probes:
        step = account = advance(account, each)
        steps.append(step)
    return steps


def test_what_one_probe_says_counts_when_the_next_says_it_too():
    first, second, third = run(HOT, HOT, HOT)
    assert (first.news, first.fresh) == ((), ())
    assert second.news == second.fresh == HOT
    assert (third.news, third.fresh) == ((), HOT)
    assert [step.news for step in run(HOT, (), HOT, ())] == [(), (), (), ()]  # one odd probe is nothing
    assert [step.news for step in run(LOAD)] == [LOAD]  # two probes told it already


def test_a_finding_is_over_after_some_probes_without_it_and_may_come_again():
    steps = run(LOAD, *[()] * (MISSES - 1), LOAD, *[()] * MISSES, LOAD)
    assert [len(step.news) for step in steps] == [1, 0, 0, 0, 0, 0, 0, 1]
    assert [len(step.over) for step in steps] == [0, 0, 0, 0, 0, 0, 1, 0]
    assert steps[1].known == {K.FOREIGN_LOAD}
    assert steps[1].fresh == ()


def test_a_finding_that_holds_is_told_in_its_latest_words():
    hotter = findings(battery(celsius=61.0), WELL, POLICY, Situation())
    *_, last = run(HOT, HOT, hotter)
    assert last.held[K.BATTERY_HOT].cause == "battery too hot: 61.0 °C, above 55 °C"
    assert last.faults == {DeviceFault.HOT}


@pytest.mark.parametrize("wrong", [free(0), free(500), dropped("battery", "UPDATES STOPPED"), GAME])
def test_each_hint_that_names_adb_has_the_phone_and_the_server(wrong):
    (finding,) = found(wrong, replace(WELL, busiest=GAME.busiest), adb="adb -P 5038 -s S1").values()
    assert "adb -P 5038 -s S1 shell " in finding.hint
