"""Values as people read them."""

import re

from farm.common.durations import format_duration
from farm.devices.health.series import LINE_EVERY_S
from farm.web.rendering import SPARK_WIDTH, linked, spark


def test_backticks_are_code_and_the_rest_is_escaped() -> None:
    assert linked("<x>: `farm <y>` ends it") == "&lt;x&gt;: <code>farm &lt;y&gt;</code> ends it"
    assert linked("one ` alone") == "one ` alone"
    assert linked("see `farm job list`, `now`") == 'see <a href="/jobs">farm job list</a>, <code>now</code>'


def test_a_spark_is_as_wide_as_there_are_readings_and_says_its_span() -> None:
    line = spark([None, None, 30.0, None, 34.5])
    assert f"<title>temperature of the last {format_duration(3 * LINE_EVERY_S)}: 30.0 to 34.5 °C</title>" in line
    assert re.findall(r"([\d.]+),", line) == ["0.0", f"{SPARK_WIDTH:.1f}"]
    assert "not known yet" in spark([None, 30.0])
    assert "not known yet" in spark([])
