"""Sentences for people."""

from __future__ import annotations

import pytest

from farm.control.render import nobody_answers


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("andriod", "did you mean android?"),
        ("Adreno 741", "did you mean adreno-740?"),
        ("zzz", "see `farm alias list`"),
    ],
)
def test_a_key_of_nobody_names_the_nearest(key: str, said: str) -> None:
    sentence = nobody_answers(key, {"android", "adreno-740"})
    assert sentence == f"no phone answers to {key}, and nobody waits for it; {said}"
