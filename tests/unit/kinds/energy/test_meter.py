import sys

import pytest

from farm.common.errors import Code
from farm.kinds.energy.meter import PowerMeter, reading_of, step_of
from farm.measure.energy import PowerReading
from tests.support.errors import raises_code
from tests.support.pages import ROOT


def python(*lines):
    return (sys.executable, "-u", "-c", "import sys, time\n" + "\n".join(lines))


STEADY = ("while True:", "    print(f'{time.time():.4f},1.5')", "    time.sleep(0.01)")
FOUR = ("for _ in range(8): print(f'{time.time():.4f},1.5'); time.sleep(0.01)",)


def test_readings_come_up_to_the_end_of_a_window(tmp_path):
    with PowerMeter(python(*STEADY), tmp_path) as meter:
        assert 0.01 <= meter.period_s() < 1
        first = meter.until(0)
        later = meter.until(first[-1].at_s + 0.05)
    assert later[0].at_s > first[-1].at_s
    assert later[-1].at_s >= first[-1].at_s + 0.05
    assert {each.watts for each in later} == {1.5}


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("/nonexistent/meter",), "cannot be started: No such file"),
        (python(*FOUR, "sys.exit('unplugged')"), "ended with 1 in the middle"),
        (python("print('1,5 watts')", "time.sleep(60)"), "no `seconds,watts` in line 1: '1,5 watts'"),
        (python("for n in range(9): print(f'{n + 1},1.5')", "time.sleep(60)"), "must print seconds since 1970"),
        (
            python(*(each.replace("1.5", "1002") for each in STEADY)),
            "tells 1,002 W of an idle phone: it must print watts",
        ),
    ],
    ids=["absent", "disconnects", "other words", "other clock", "milliwatts"],
)
def test_a_meter_that_fails_is_told_in_one_sentence(tmp_path, words, match):
    with raises_code(Code.POWER_METER_FAILED, match=match), PowerMeter(words, tmp_path) as meter:
        meter.period_s()
        meter.until(float("inf"))


def test_a_silent_meter_is_not_waited_for_for_ever(tmp_path):
    now_s = [0.0]

    def wait(_seconds):
        now_s[0] += 1.0

    words = python("time.sleep(60)")
    with (
        raises_code(Code.POWER_METER_FAILED, match="has printed nothing for 10 s"),
        PowerMeter(words, tmp_path, clock=lambda: now_s[0], wait=wait) as meter,
    ):
        meter.period_s()


@pytest.mark.parametrize("line", ["", "1", "1,2,3", "1,nan", "inf,1", "-1,2", "1;2", "1,0,5"])
def test_lines_that_are_no_reading(line):
    assert reading_of(line) is None


def test_a_line_is_a_reading():
    assert reading_of("1764266400.25, 1.75\r") == PowerReading(1764266400.25, 1.75)


def test_the_step_of_a_meter():
    def shown(*watts):
        return [PowerReading(float(place), each) for place, each in enumerate(watts)]

    assert step_of(shown(1.0, 1.2, 1.1, 1.0)) == pytest.approx(0.1)
    assert step_of(shown(1.0, 1.0)) == 0.0


def test_the_program_of_the_page_reads_a_sensor(tmp_path):
    blocks = (ROOT / "docs" / "energy.md").read_text("utf-8").split("```python\n")
    program = tmp_path / "meter.py"
    program.write_text(blocks[1].split("```")[0])
    (tmp_path / "power1_input").write_text("2500000\n")
    with PowerMeter((sys.executable, str(program), str(tmp_path)), tmp_path) as meter:
        assert meter.period_s() < 1
        assert {each.watts for each in meter.until(0)} == {2.5}
