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
from farm.devices.lifecycle.recovery import ACTION_RULES
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


def battery(**changes):
    return replace(WELL, battery=replace(WELL.battery, **changes))


def test_a_phone_that_is_well_has_no_findings():
    assert found(WELL, dealt=()) == {}


def test_what_is_not_known_is_not_wrong():
    assert found(Health(), Health(), dealt=()).keys() == {K.SERVER_GONE}
    assert found(Health(missing=("processes",)), None, dealt=()) == {}


# --- storage, memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free_mb", "known", "kind"),
    [
        (199, (), K.DATA_FULL),
        (201, (), K.DATA_LOW),
        (299, (K.DATA_FULL,), K.DATA_FULL),
        (301, (K.DATA_FULL,), K.DATA_LOW),
        (999, (), K.DATA_LOW),
        (1001, (), None),
    ],
)
def test_data_is_full_low_or_well_and_a_full_one_must_become_clearly_better(free_mb, known, kind):
    kinds = found(replace(WELL, data_free_bytes=free_mb * 10**6), known=known)
    assert set(kinds) == ({kind} if kind else set())


def test_a_full_data_is_for_recovery_and_says_its_figures():
    finding = found(replace(WELL, data_free_bytes=12 * 10**6))[K.DATA_FULL]
    assert finding.act
    assert finding.fault is DeviceFault.STORAGE
    assert finding.cause == "/data has 12 MB left, 200 MB are needed"


def test_low_memory_is_a_warning():
    finding = found(replace(WELL, memory_available_bytes=180 * 10**6))[K.MEMORY_LOW]
    assert not finding.act
    assert "180 of 8000 MB" in finding.cause


# --- processes --------------------------------------------------------------------------------------------------------


def with_server(*server):
    return replace(WELL, server=server)


def test_a_process_that_sat_in_a_driver_for_two_probes_is_stuck():
    stuck = with_server(SUPERVISOR, SERVER, replace(SESSION, state="D"))
    finding = found(stuck, stuck, held=True)[K.STUCK_PROCESS]
    assert finding.fault is DeviceFault.STUCK
    assert finding.cause == "process 102 hangs in a driver (state D)"


@pytest.mark.parametrize(
    "before",
    [
        WELL,
        with_server(SUPERVISOR, SERVER, SESSION),  # it ran
        with_server(SUPERVISOR, SERVER, replace(SESSION, pid=103, state="D")),  # another one
        replace(with_server(SUPERVISOR, SERVER, replace(SESSION, state="D")), boot_id="boot-0"),
        None,
    ],
)
def test_one_probe_in_a_driver_is_nothing(before):
    stuck = with_server(SUPERVISOR, SERVER, replace(SESSION, state="D"))
    assert K.STUCK_PROCESS not in found(stuck, before, held=True)


def test_a_session_that_computes_for_nobody_is_an_orphan():
    busy = with_server(SUPERVISOR, SERVER, SESSION)
    assert found(busy, busy)[K.ORPHAN].fault is DeviceFault.STUCK
    assert found(busy, busy, held=True) == {}
    assert found(busy, WELL) == {}  # it may have begun with a lease that has just ended


def test_a_server_that_computes_is_no_orphan():
    busy = with_server(SUPERVISOR, replace(SERVER, state="R"))
    assert found(busy, busy) == {}


def test_a_zombie_of_ours_is_a_warning():
    dead = with_server(SUPERVISOR, SERVER, replace(SESSION, state="Z"))
    assert not found(dead, dead)[K.ZOMBIE].act


def test_a_ready_phone_without_a_server_for_two_probes_needs_one():
    gone = with_server()
    assert found(gone, gone)[K.SERVER_GONE].fault is DeviceFault.SERVER
    assert found(gone, WELL) == {}
    assert found(gone, gone, ready=False) == {}
    assert found(replace(gone, missing=("processes",)), gone) == {}
    assert found(gone, replace(gone, missing=("processes",))) == {}


# --- GPU, boot --------------------------------------------------------------------------------------------------------

FAULT = "[ 4999.123456] kgsl kgsl-3d0: GPU PAGE FAULT: addr = 5C0DE000 pid= 77 name=tvm_rpc"


def test_lines_of_gpu_faults_since_the_last_check_are_for_recovery():
    faulty = replace(WELL, gpu_faults=("[    1.000000] kgsl: hang", FAULT))
    finding = found(faulty, dealt=("[    1.000000] kgsl: hang",))[K.GPU_FAULT]
    assert finding.fault is DeviceFault.GPU
    assert finding.cause == "the GPU's driver reports a fault"
    assert finding.evidence == "kgsl kgsl-3d0: GPU PAGE FAULT: addr = 5C0DE000 pid= 77 name=tvm_rpc"
    assert found(faulty, dealt=faulty.gpu_faults) == {}
    assert found(faulty, dealt=None) == {}


def test_a_reboot_behind_our_back():
    anew = replace(WELL, boot_id="boot-2", uptime_s=40.0)
    assert found(anew)[K.REBOOTED].cause == "it rebooted 40 s ago, and adb did not notice"
    assert found(anew, None) == {}
    by_time = replace(WELL, boot_id="btime-1790000000")
    clock_set = replace(by_time, boot_id="btime-1790000007", uptime_s=5010.0)
    assert found(clock_set, by_time) == {}
    assert K.REBOOTED in found(replace(clock_set, uptime_s=40.0), by_time)
    assert found(replace(WELL, boot_id="")) == {}


# --- battery ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("celsius", "health", "known", "hot"),
    [
        (55.1, "good", (), True),
        (54.9, "good", (), False),
        (47.1, "good", (K.BATTERY_HOT,), True),
        (46.9, "good", (K.BATTERY_HOT,), False),
        (None, "overheat", (), True),
        (30.0, "overheat", (), True),
    ],
)
def test_a_hot_battery_must_cool_by_a_margin(celsius, health, known, hot):
    kinds = found(battery(celsius=celsius, health=health), known=known)
    assert (K.BATTERY_HOT in kinds) is hot
    if hot:
        assert kinds[K.BATTERY_HOT].fault is DeviceFault.HOT


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


def test_a_cold_battery_is_a_warning():
    assert not found(battery(celsius=-3.5))[K.BATTERY_COLD].act
    assert K.BATTERY_COLD in found(battery(health="cold"))


@pytest.mark.parametrize("health", ["dead", "failure", "over-voltage"])
def test_a_battery_that_its_phone_calls_bad_is_kept_away_from_users(health):
    assert found(battery(health=health))[K.BATTERY_BAD].fault is DeviceFault.BATTERY


def test_a_gauge_that_says_nonsense():
    odd = replace(WELL, dropped=(Dropped("battery", "temperature", "-4000", "no battery temperature"),))
    assert found(odd)[K.GAUGE].cause == "battery gauge says temperature=-4000"
    assert K.GAUGE in found(battery(percent=0, voltage_mv=4100))
    assert found(battery(percent=0, voltage_mv=3300)) == {}
    board = replace(WELL, dropped=(Dropped("battery", "battery", "present: false", "there is no battery"),))
    assert found(board) == {}
    by_hand = replace(WELL, dropped=(Dropped("battery", "battery", "UPDATES STOPPED", "by hand"),))
    assert found(by_hand, adb="adb -s S1")[K.GAUGE].hint == "adb -s S1 shell dumpsys battery reset"


# --- clocks, foreign load ---------------------------------------------------------------------------------------------


def clocked(max_khz, min_khz=700_000, **changes):
    return replace(WELL, cpu=(CLUSTERS[0], replace(CLUSTERS[1], max_khz=max_khz, min_khz=min_khz)), **changes)


def test_a_clock_that_is_held_down_without_heat():
    held = clocked(1_200_000)
    what = found(held, held)[K.CLOCK_HELD].cause
    assert what == "CPU 4-7 held at 1.20 of 2.40 GHz"
    assert found(held, WELL) == {}
    assert found(clocked(2_000_000), clocked(2_000_000)) == {}


def test_a_clock_that_heat_or_a_person_holds_is_none():
    for held in (
        clocked(1_200_000, throttle=ThrottleStatus.LIGHT),
        clocked(1_200_000, throttle=None),
        clocked(1_200_000, min_khz=1_200_000),
    ):
        assert found(held, held) == {}


def test_a_gpu_that_is_held_down():
    held = replace(WELL, gpu=replace(WELL.gpu, min_hz=200_000_000, max_hz=300_000_000))
    assert "300 of 700 MHz" in found(held, held)[K.CLOCK_HELD].cause
    for no_wonder in ({"throttled": True}, {"min_hz": 300_000_000}):
        other = replace(held, gpu=replace(WELL.gpu, max_hz=300_000_000, **{"min_hz": 200_000_000, **no_wonder}))
        assert found(other, other) == {}


def test_a_foreign_process_that_runs_all_the_time_is_named():
    game = replace(WELL, load_1min=2.1, busiest=(process(900, share=97.0), process(901, "other", share=3.0)))
    finding = found(game, game, held=True)[K.FOREIGN_LOAD]
    assert not finding.act
    assert "com.example.game (pid 900, 97 % of a core)" in finding.evidence
    assert finding.cause == "com.example.game keeps the phone busy"
    assert found(game, game, in_hands=True) == {}
    assert found(game, WELL) == {}
    assert found(replace(game, load_1min=1.4), game) == {}
    service = replace(game, busiest=(process(901, "system_server", share=9.0),))
    assert found(service, service) == {}
    assert found(replace(game, busiest=(replace(process(900), state="S"),)), game) == {}


def test_our_own_session_is_no_foreign_load():
    busy = replace(WELL, load_1min=4.0, server=(SUPERVISOR, SERVER, SESSION), busiest=(SESSION,))
    assert found(busy, busy, held=True) == {}


# --- every kind -------------------------------------------------------------------------------------------------------


def test_recovery_can_do_something_about_every_fault_that_is_found():
    repaired = {fault for rule in ACTION_RULES for fault in rule.helps}
    assert {
        DeviceFault.STORAGE,
        DeviceFault.STUCK,
        DeviceFault.GPU,
        DeviceFault.SERVER,
        DeviceFault.HOT,
        DeviceFault.BATTERY,
    } <= repaired


def test_a_model_can_be_exempted():
    policy = HealthConfig(model={"SM-A556B": ModelHealth(ignore=(K.GAUGE,))})
    assert policy.ignored("sm-a556b") == {K.GAUGE}
    assert policy.ignored("SM-A556E") == policy.ignored("") == frozenset()


def test_a_fault_is_over_only_by_a_probe_that_could_tell():
    assert has_evidence(WELL, DeviceFault.HOT)
    assert has_evidence(WELL, DeviceFault.STORAGE)
    assert not has_evidence(Health(), DeviceFault.HOT)
    assert not has_evidence(Health(), DeviceFault.STORAGE)
    assert not has_evidence(WELL, DeviceFault.BATTERY)


# --- the account ------------------------------------------------------------------------------------------------------

HOT = findings(battery(celsius=60.0), WELL, POLICY, Situation())
LOAD = findings(*[replace(WELL, load_1min=3.0, busiest=(process(900),))] * 2, POLICY, Situation())


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


def test_one_odd_probe_is_nothing():
    assert [step.news for step in run(HOT, (), HOT, ())] == [(), (), (), ()]


def test_what_two_probes_told_already_counts_at_once():
    (only,) = run(LOAD)
    assert only.news == LOAD


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


def test_each_hint_that_names_adb_has_the_phone_and_the_server():
    by_hand = Dropped("battery", "battery", "UPDATES STOPPED", "by hand")
    for wrong in (
        replace(WELL, data_free_bytes=1), replace(WELL, data_free_bytes=500_000_000), replace(WELL, dropped=(by_hand,)),
        replace(WELL, load_1min=5.0, busiest=(process(900),)),
    ):  # fmt: skip
        before = replace(WELL, busiest=(process(900),))
        (finding,) = found(wrong, before, adb="adb -P 5038 -s S1").values()
        assert "adb -P 5038 -s S1 shell " in finding.hint
