"""`farm poison forget` by the beginning that the list shows."""

import pytest

from farm.common.files import SHORT_HASH

ONE, TWO = "ab" + "1" * 62, "ab" + "2" * 62


@pytest.mark.parametrize(
    ("library", "said", "forgotten"),
    [
        (ONE[:SHORT_HASH], "", [ONE]),
        (TWO.upper(), "", [TWO]),
        ("ab", "2 libraries begin", []),
        ("ff", "begins with 'ff'", []),
        ("", "is empty", []),
    ],
)
def test_a_beginning_of_one_library_forgets_it(answers, farm, library, said, forgotten):
    answers["poison.list"] = {"poison": [{"artifact": each} for each in (ONE, TWO)]}
    answers["poison.forget"] = lambda **fields: fields
    assert said in farm(f"poison forget '{library}'").err
    assert [fields["artifact"] for kind, fields in answers.asked if kind == "poison.forget"] == forgotten
