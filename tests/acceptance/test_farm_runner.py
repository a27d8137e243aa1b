"""`farm.FarmRunner`: which phones it takes, what it says when there are too few, what its measurements are worth."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig

from farm.client.tuning import FarmRunner
from farm.common.errors import NoPhoneError, NotAllowedError
from farm.simulation.virtual_farm import VirtualFarm
from farm.tuning.candidate import Measured
from tests.support.candidates import library, module, runner_inputs, target
from tests.support.waiting import until
from tests.support.whole_farm import Phone, phones, until_status

ONCE = EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
GOVERNOR = "class/kgsl/kgsl-3d0/devfreq/governor"

pytestmark = pytest.mark.farm("galaxy-s9", "oneplus-12", "oneplus-12")


def taken(runner: FarmRunner, count: int) -> set[str]:
    phones = runner._phones
    asyncio.run(until(lambda: len(phones.state().phones) == count))
    return {each.device for each in phones.state().phones}


def test_what_no_phone_matches_is_refused_at_once(farm: VirtualFarm) -> None:
    with pytest.raises(NoPhoneError, match="no phone matches nothing"):
        FarmRunner(on="nothing", socket=farm.socket)


def test_phones_that_have_their_like_are_taken(farm: VirtualFarm) -> None:
    said: list[str] = []
    with FarmRunner(on="android", devices=2, socket=farm.socket, on_notice=said.append) as runner:
        assert {name.removesuffix("-2") for name in taken(runner, 2)} == {"oneplus-12"}
    assert said == []


def test_too_few_that_are_alike_are_told_of(farm: VirtualFarm) -> None:
    said: list[str] = []
    with FarmRunner(on="android", devices=3, socket=farm.socket, on_notice=said.append) as runner:
        taken(runner, 2)
    assert said[0].startswith(
        "only 2 phones that match android are identical: not 3 at once; sm-g9600 differs from oneplus-12"
    )
    assert " in soc, gpu" in said[0]
    with FarmRunner(on="soc=sdm845", devices=2, socket=farm.socket, on_notice=said.append) as runner:
        taken(runner, 1)
        asyncio.run(until(lambda: any("is waited for: " in each for each in said)))
    assert "no two phones that match soc=sdm845 are identical: one at once, not 2" in said


def test_a_phone_with_another_governor_is_not_pooled(farm: VirtualFarm) -> None:
    one, other = phones(farm)[1:]
    was = set_governor(farm, other, "performance")
    try:
        said: list[str] = []
        with FarmRunner(on="soc=sm8650", devices=2, socket=farm.socket, on_notice=said.append) as runner:
            [first] = taken(runner, 1)
            asyncio.run(until(lambda: any("phone 2 of 2 is waited for: " in each for each in said)))
            assert len(runner._phones.state().phones) == 1
        pair = {one.name, other.name}
        assert first in pair
        assert said[0].startswith("no two phones that match soc=sm8650 are identical: one at once, not 2; ")
        assert said[0].endswith(" in clock policy")
        assert all(name in said[0] for name in pair)
    finally:
        set_governor(farm, other, was)


def set_governor(farm: VirtualFarm, phone: Phone, governor: str) -> str:
    """Write it where the phone's kernel shows it and have the phone identified again; returns the one before."""
    [path] = [path for path in farm.folder.rglob(GOVERNOR) if phone.nickname in path.parts]
    was = path.read_text()
    path.write_text(governor)
    farm.lab.unplug(phone.nickname)
    until_status(farm, lambda _: phone.row["state"] != "ready")
    farm.lab.plug(phone.nickname)
    until_status(farm, lambda _: phone.row["state"] == "ready")
    return was


def test_a_measurement_names_its_phone_and_is_divided_by_its_factor(farm: VirtualFarm, tmp_path: Path) -> None:
    told: list[Measured] = []
    with FarmRunner(
        on="soc=sm8650", devices=2, socket=farm.socket, evaluator=ONCE, measured=told.append, same_limit=None
    ) as runner:
        pair = taken(runner, 2)
        candidate, times = library(tmp_path, "sleep 20"), []
        while {each.device for each in told} != pair:  # the one that is ready first may measure some alone
            answers = [each.result() for each in runner.run(runner_inputs([candidate] * 4))]
            times += [[float(second) for second in each.run_secs] for each in answers]
    assert sorted(times) == sorted(list(each.scaled) for each in told)
    for each in told:
        assert each.scaled == pytest.approx([second / each.factor for second in each.seconds])
    # The nominal time is that of the phone that joined first: the other one's factor is its own.
    assert len({each.factor for each in told}) > 1


def test_what_killed_is_told_to_the_farm_and_not_run_by_the_next_script(farm: VirtualFarm, tmp_path: Path) -> None:
    killer = library(tmp_path, "abort")
    sha256 = hashlib.sha256(killer.read_bytes()).hexdigest()
    with FarmRunner(on="soc=sm8650", socket=farm.socket, evaluator=ONCE) as runner:
        [phone] = taken(runner, 1)
        [answer] = runner.run(runner_inputs([killer]))
        assert "twice" in answer.result().error_msg
    [row] = farm.client.call("poison.list")["poison"]
    assert (row["artifact"], row["device"], row["kills"], row["refused"]) == (sha256, phone, 2, True)
    job = farm.client.call("job.show", job=row["job"])["job"]
    assert (job["kind"], job["on"], job["user"]) == ("lease", phone, row["user"])
    with FarmRunner(on="soc=sm8650", socket=farm.socket, evaluator=ONCE) as runner:
        [answer] = runner.run(runner_inputs([killer]))
        assert "poison" in answer.result().error_msg
    assert farm.client.call("poison.list")["poison"] == [row]
    with pytest.raises(NotAllowedError, match=f"{phone} is not yours now"):
        farm.client.call("poison.report", artifact="0" * 64, device=phone, what="a lie", kills=2)


def test_a_phone_that_comes_back_to_another_seat_shows_what_killed(farm: VirtualFarm, tmp_path: Path) -> None:
    with FarmRunner(on="soc=sdm845", devices=2, socket=farm.socket, evaluator=ONCE) as runner:
        taken(runner, 1)
        asyncio.run(until(lambda: "held by" in runner._phones.state().waits))
        [answer] = runner.run(runner_inputs([library(tmp_path, "abort", 2.0)]))
        assert "twice" in answer.result().error_msg


def test_what_stocks_builder_makes_is_measured(farm: VirtualFarm) -> None:
    """A .tar of object files; tests/acceptance/test_runner_faults.py has the whole of `ms.tune_tir` with it."""
    import tvm
    from tvm.s_tir.meta_schedule.builder.local_builder import default_export

    said: list[str] = []
    made = Path(default_export(tvm.tirx.build(module("add"), target=target())))
    assert made.suffix == ".tar"
    with FarmRunner(on="soc=sm8650", socket=farm.socket, evaluator=ONCE, on_notice=said.append) as runner:
        [answer] = runner.run(runner_inputs([made]))
        assert answer.result().error_msg is None
        assert [float(each) > 0 for each in answer.result().run_secs] == [True]
    assert said == []
