"""Values as people read them."""

from farm.web.words import coded, spark


def test_backticks_are_code_and_the_rest_is_escaped() -> None:
    assert coded("<x>: `farm <y>` ends it") == "&lt;x&gt;: <code>farm &lt;y&gt;</code> ends it"
    assert coded("one ` alone") == "one ` alone"
    assert coded("plain") == "plain"


def test_a_spark_says_its_span() -> None:
    assert "<title>temperature of the last hour: 30.0 to 34.5 °C</title>" in spark([None, 30.0, 34.5])
    assert "not known yet" in spark([])
