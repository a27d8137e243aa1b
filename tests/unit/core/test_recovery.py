"""The recovery ladder: which rung comes next, what it costs, what it waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.core.recovery import (
    ANY_NUMBER,
    DAY_S,
    LADDER,
    STEPS,
    Ailment,
    Around,
    Climb,
    Outcome,
    Radius,
    Rung,
    budgets_left,
    next_rung,
)

POWER = Around(no_power="")


def climbed(ailment: Ailment, around: Around = POWER, *, proven: bool = True, climb: Climb | None = None) -> list[Rung]:
    """Every rung that is taken, one after the other, when nothing helps."""
    climb, taken = climb or Climb(), list[Rung]()
    while (rung := next_rung(climb, ailment, 0.0, around, proven=proven).rung) and len(taken) < 20:
        taken.append(rung)
        climb = climb.begin(rung, ailment, "why", 0.0).end(Outcome.FAILED, "why", 0.0)
    return taken


@pytest.mark.parametrize(
    ("ailment", "rungs"),
    [
        (Ailment.SERVER, [*[Rung.RESTART] * 3, Rung.REPUSH, Rung.REBOOT, Rung.QUARANTINE]),
        (Ailment.START, [*[Rung.REPUSH] * 3, Rung.REBOOT, Rung.QUARANTINE]),
        (Ailment.CHECK, [Rung.RESTART, Rung.REPUSH, Rung.REPUSH, Rung.REBOOT, Rung.QUARANTINE]),
        (Ailment.WRONG, [Rung.RESTART, Rung.REPUSH, Rung.QUARANTINE]),
        (Ailment.STUCK, [Rung.REBOOT, Rung.QUARANTINE]),
        (Ailment.GPU, [Rung.RESTART, Rung.REBOOT, Rung.QUARANTINE]),
        (Ailment.MUTE, [Rung.RECONNECT, Rung.RECONNECT, Rung.POWER_CYCLE]),
        (Ailment.OFFLINE, [Rung.RECONNECT, Rung.RECONNECT, Rung.POWER_CYCLE]),
        (Ailment.UNAUTHORIZED, [Rung.RECONNECT]),
        (Ailment.HOT, [Rung.QUARANTINE]),
    ],
)
def test_what_is_tried_when_nothing_helps(ailment: Ailment, rungs: list[Rung]) -> None:
    assert climbed(ailment) == rungs


def test_a_link_that_is_down_never_costs_a_reboot() -> None:
    for ailment in (Ailment.MUTE, Ailment.OFFLINE, Ailment.UNAUTHORIZED):
        assert ailment not in STEPS[Rung.REBOOT].mends


@pytest.mark.parametrize("ailment", [Ailment.SERVER, Ailment.START, Ailment.CHECK])
def test_a_bundle_that_never_worked_is_suspected_before_the_phone(ailment: Ailment) -> None:
    assert Rung.REBOOT not in climbed(ailment, proven=False)
    assert climbed(ailment, proven=False)[-1] is Rung.QUARANTINE


def test_users_kernels_may_hang_as_often_as_they_like() -> None:
    climb = Climb()
    for second in range(1000):
        assert next_rung(climb, Ailment.SESSION, float(second), POWER).rung is Rung.REAP
        climb = climb.begin(Rung.REAP, Ailment.SESSION, "hangs", float(second)).end(Outcome.MENDED, "", second + 0.5)
    assert (climb.tried, climb.spent) == ((), ())


def test_a_budget_is_for_any_24_hours_and_is_not_given_back_by_success() -> None:
    climb = Climb()
    for hour in range(3):
        now_s = hour * 3600.0
        assert next_rung(climb, Ailment.STUCK, now_s, POWER).rung is Rung.REBOOT
        climb = climb.begin(Rung.REBOOT, Ailment.STUCK, "stuck", now_s).end(Outcome.MENDED, "", now_s).settled()
    refused = next_rung(climb, Ailment.STUCK, 3 * 3600.0, POWER)
    assert (refused.rung, refused.skipped) == (Rung.QUARANTINE, ("reboot: its 3 in 24 h are used up",))
    assert next_rung(climb, Ailment.STUCK, DAY_S + 1.0, POWER).rung is Rung.REBOOT


def test_budgets_are_operators_to_set() -> None:
    never = Around(per_day={Rung.REBOOT: 0})
    assert climbed(Ailment.STUCK, never) == [Rung.QUARANTINE]
    assert budgets_left(Climb(), 0.0, never)[Rung.REBOOT] == 0


def test_what_a_person_ordered_costs_no_budget() -> None:
    climb = Climb().begin(Rung.REBOOT, Ailment.ORDER, "ann wants it", 0.0, free=True)
    assert budgets_left(climb, 0.0, POWER)[Rung.REBOOT] == STEPS[Rung.REBOOT].per_day


def test_a_reboot_waits_for_the_holder_while_the_phone_is_of_use() -> None:
    held = Around(holder="ann", in_hands=True)
    choice = next_rung(Climb(), Ailment.STUCK, 0.0, held)
    assert (choice.rung, choice.waits) == (None, "reboot waits: ann has the phone")
    assert next_rung(Climb(), Ailment.STUCK, 0.0, Around(holder="a job")).rung is Rung.REBOOT
    dead = Climb(tried=((Rung.REPUSH, Ailment.START),) * 3)
    assert next_rung(dead, Ailment.START, 0.0, held).rung is Rung.REBOOT


def test_a_power_cycle_waits_for_the_neighbours_and_is_skipped_without_a_switch() -> None:
    tried = Climb(tried=((Rung.RECONNECT, Ailment.OFFLINE),) * 2)
    waits = next_rung(tried, Ailment.OFFLINE, 0.0, Around(no_power="", neighbours="bob's lease on pixel-2"))
    assert (waits.rung, waits.waits) == (None, "power-cycle waits: it would hurt bob's lease on pixel-2")
    skipped = next_rung(tried, Ailment.OFFLINE, 0.0, Around())
    assert (skipped.rung, skipped.skipped) == (None, ("power-cycle: no power switch is configured",))


def test_what_is_not_the_phones_fault_burns_nothing_on_the_phone() -> None:
    hub = Around(no_power="", elsewhere="3 phones on hub 1-4 went together: it is the hub")
    assert climbed(Ailment.OFFLINE, hub) == [Rung.RECONNECT, Rung.RECONNECT]
    assert Rung.REBOOT not in climbed(Ailment.CHECK, hub)


def test_harder_rungs_count_whatever_they_were_tried_for() -> None:
    climb = Climb().begin(Rung.REBOOT, Ailment.STUCK, "stuck", 0.0)
    assert next_rung(climb, Ailment.GPU, 0.0, POWER).rung is Rung.RESTART
    tried = climb.begin(Rung.RESTART, Ailment.GPU, "faults", 0.0)
    assert next_rung(tried, Ailment.GPU, 0.0, POWER).rung is Rung.QUARANTINE


def test_a_rung_tells_how_long_it_took_and_what_came_of_it() -> None:
    climb = Climb().begin(Rung.REBOOT, Ailment.STUCK, "pid 7 survives SIGKILL", 10.0).end(Outcome.MENDED, "", 52.5)
    assert climb.under_way is None
    assert climb.last is not None
    assert (climb.last.taken.rung, climb.last.outcome, climb.last.took_s) == (Rung.REBOOT, Outcome.MENDED, 42.5)
    assert climb.end(Outcome.FAILED, "again", 60.0) == climb


def test_every_ailment_has_an_answer_and_every_rung_says_whom_it_hurts() -> None:
    mended = {ailment for step in LADDER for ailment in step.mends}
    assert mended | {Ailment.ORDER} == set(Ailment)
    assert [step.rung for step in LADDER] == list(Rung)
    hurts = [list(Radius).index(step.radius) for step in LADDER if step.rung is not Rung.QUARANTINE]
    assert hurts == sorted(hurts)


def test_the_document_has_the_ladder() -> None:
    text = (Path(__file__).parents[3] / "docs" / "recovery.md").read_text()
    for step in LADDER:
        mends = ", ".join(f"{each} {most}" if 1 < most < ANY_NUMBER else str(each) for each, most in step.mends.items())
        per_day = "as needed" if step.per_day is None else step.per_day
        assert f"| `{step.rung}` | {step.what} | {step.radius} | {per_day} | {mends} |" in text
