"""What a job is to do, as the terminal and the web page say it."""

from farm.kinds import KINDS
from farm.kinds.spec_text import described, unusual

SHA = "ab" * 32


def test_only_unusual_options_are_told():
    spec = KINDS["bench"].from_wire(
        {"on": "android", "model": SHA, "name": "m.onnx", "repeat": 5, "shapes": {"x": [1, 2]}, "inputs": SHA}
    )
    assert sorted(unusual(spec.to_wire())) == [f"inputs {SHA[:12]}", "repeat 5", "shape x:[1,2]"]


def test_options_of_another_release_are_told_as_they_are():
    assert list(unusual({"kind": "of another release", "speed": 3, "sizes": [1, 2]})) == ["speed 3", "sizes [1,2]"]


def test_what_is_to_be_done_and_where():
    row = {"selector": "android", "device": "pixel"}
    spec = {"kind": "lease", "seconds": 90.0, "note": "heat"}
    assert list(described(row, spec)) == [("for", "1m 30s: heat"), ("selector", "android; phone pixel")]
    assert list(described({**row, "device": ""}, {"command": "exit 3"})) == [
        ("command", "exit 3"),
        ("selector", "android"),
    ]
