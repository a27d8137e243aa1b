"""Which phones may stay in a pool, and what their results are divided by."""

import pytest

from farm.tuning.phone_speed import (
    READINGS,
    RECENT_S,
    RECHECK_FACTOR,
    SCALE_FILE,
    SpeedJudge,
    SpeedOpinion,
    judge_each_kind,
    level,
    opinion,
    read_nominal,
    write_nominal,
)


class Phones:
    """Readings of the reference kernel, by session."""

    def __init__(self, **speed):
        self.now_s = 0.0
        self.speed = speed
        self.loads = []
        self.reads = 0

    def load(self, session):
        self.loads.append(session)

        def read():
            self.reads += 1
            readings = self.speed[session]
            return readings.pop(0) if len(readings) > 1 else readings[0]

        return read

    def judge(self, limit=0.15, **options):
        return SpeedJudge(self.load, limit=limit, every_s=60, clock=lambda: self.now_s, **options)

    def of_all(self, judge):
        """Why each phone is left out, a minute later."""
        self.now_s += 60
        return {name: judge.check(name.lower(), name).out for name in self.speed}


@pytest.mark.parametrize(
    ("off", "limit", "out"),
    [
        (1.1, 0.15, ""),
        (0.9, 0.15, ""),
        (1.2, 0.15, "b runs the reference kernel 20% slower than the pool does (at most 15%)"),
        (0.8, 0.15, "20% faster"),
        (9.0, None, ""),
    ],
)
def test_how_far_is_too_far(off, limit, out):
    found = opinion("b", 1.3, off, limit)
    assert found.factor == 1.3
    assert out in found.out
    assert bool(found.out) == bool(out)


@pytest.mark.parametrize(
    ("others", "own", "nominal_s", "found"),
    [
        ([], 5.0, 1.0, 5.0),  # alone: whatever it is
        ([1.2], 1.0, None, 1.0),
        ([1.0], 1.2, None, 1.0),
        ([1.0], 0.7, 1.0, 1.0),  # known to be too fast
        ([0.7], 1.0, 1.0, 1.0),
        ([1.2, 1.0], 1.01, None, 1.01),
        ([0.7, 1.0], 1.01, None, 1.0),
    ],
)
def test_what_the_pool_is(others, own, nominal_s, found):
    assert level(others, own, nominal_s) == found


def test_the_first_phone_gives_the_scale():
    phones = Phones(A=[0.010, 0.001, 0.002], B=[0.0011])
    heard = []
    judge = phones.judge(found=heard.append)
    assert judge.check("a", "A").factor == 1.0
    assert judge.check("b", "B").factor == pytest.approx(1.1)
    assert phones.loads == ["A", "B"]
    assert heard == [0.001]


@pytest.mark.parametrize("told", [0.0, -1.0, float("nan"), float("inf")])
def test_a_phone_whose_clock_tells_no_time_gives_no_scale(told):
    """As the nominal it put every other phone out, with "float division by zero"."""
    phones, kept = Phones(A=[told], B=[1.0]), []
    judge = phones.judge(found=kept.append)
    with pytest.raises(ValueError, match="the phone's clock says that it took"):
        judge.check("a", "A")
    assert judge.check("b", "B") == SpeedOpinion(1.0)
    assert kept == [1.0]


def test_the_farms_history_gives_it_where_there_is_one_and_an_earlier_attempt_before_all():
    phones = Phones(A=[0.0012])
    heard = []
    assert phones.judge(history_s=0.001, found=heard.append).check("a", "A").factor == pytest.approx(1.2)
    assert heard == [0.001]
    again = phones.judge(nominal_s=0.0006, history_s=0.001, found=heard.append)
    assert again.check("a", "A") == SpeedOpinion(pytest.approx(2))
    assert heard == [0.001]


def test_a_hot_first_phone_puts_no_healthy_one_out():
    phones = Phones(HOT=[0.00117], B=[0.001], C=[0.00101])
    judge = phones.judge()
    assert phones.of_all(judge) == {"HOT": "", "B": "", "C": ""}  # it was alone
    assert "slower than the pool" in phones.of_all(judge).pop("HOT")
    assert judge.left_out.keys() == {"hot"}
    phones.speed["HOT"] = [0.001]
    assert phones.of_all(judge) == {"HOT": "", "B": "", "C": ""}
    assert judge.left_out == {}


def test_a_phone_that_heats_comes_back_when_it_is_cool():
    phones = Phones(A=[0.001], B=[0.001], C=[0.001])
    judge = phones.judge()
    phones.of_all(judge)
    phones.speed["A"] = [0.0012]
    assert [name for name, out in phones.of_all(judge).items() if out] == ["A"]
    phones.speed["A"] = [0.001]
    assert not any(phones.of_all(judge).values())


def test_phones_that_heat_together_stay_together():
    phones = Phones(A=[0.001], B=[0.001])
    judge = phones.judge()
    phones.of_all(judge)
    for seconds in (0.00107, 0.00114, 0.00121):
        phones.speed = {"A": [seconds], "B": [seconds]}
        assert not any(phones.of_all(judge).values())
    assert judge.scales["b"].now == pytest.approx(1.21)


def test_who_left_long_ago_is_no_measure():
    phones = Phones(A=[0.001], B=[0.002])
    judge = phones.judge()
    judge.check("a", "A")
    phones.now_s = RECENT_S - 1
    assert judge.check("b", "B").out
    phones.now_s += 61
    assert not judge.check("b", "B").out


def test_a_phone_is_read_again_only_after_a_while_and_in_a_new_session_loaded_again():
    phones = Phones(A=[0.001], A2=[0.0012])
    judge = phones.judge()
    judge.check("a", "A")
    phones.now_s = 59
    assert judge.check("a", "A2").factor == 1.0
    assert phones.reads == READINGS
    phones.now_s = 61
    assert judge.check("a", "A2").factor == pytest.approx(1.2)
    assert phones.loads == ["A", "A2"]


def test_a_slow_reading_is_doubted_before_a_phone_is_left_out():
    phones = Phones(A=[0.001], B=[0.002] * READINGS + [0.001])
    judge = phones.judge()
    judge.check("a", "A")
    assert judge.check("b", "B").out == ""
    assert phones.reads == READINGS * (2 + RECHECK_FACTOR)
    assert judge.scales["b"].now == 1.0


def test_who_is_left_out_stays_out_for_a_while():
    phones = Phones(A=[0.001], B=[0.002])
    judge = phones.judge()
    judge.check("a", "A")
    out = judge.check("b", "B").out
    assert "100% slower" in out
    assert judge.check("b", "B").out == out
    assert judge.left_out == {"b": out}


def test_the_scale_is_kept_with_the_records(tmp_path):
    assert read_nominal(tmp_path, "k") is None
    write_nominal(tmp_path, "k", 0.00123)
    assert read_nominal(tmp_path, "k") == 0.00123
    assert read_nominal(tmp_path, "another kernel") is None
    wrong = ('{"kernel": "k", "nominal_s": -1}', '{"kernel": "k", "nominal_s": NaN}')
    for damage in ("", "{}", "[]", "[" * 100_000, *wrong, "\udcff"):
        (tmp_path / SCALE_FILE).write_text(damage, errors="surrogateescape")
        assert read_nominal(tmp_path, "k") is None


def test_each_kind_of_device_has_a_judge_of_its_own_from_its_first_candidate_on():
    phones, asked = Phones(), list[str]()

    def judge_of(kind):
        asked.append(kind)
        return phones.judge() if kind == "cpu" else None

    judge_each = judge_each_kind(judge_of)
    assert judge_each("") is None
    assert asked == []
    for_cpu = judge_each("cpu")
    assert for_cpu is not None
    assert judge_each("cpu") is for_cpu
    assert judge_each("hexagon") is None
    assert judge_each("hexagon") is None
    assert asked == ["cpu", "hexagon"]
