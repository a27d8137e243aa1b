"""What a run says of its outputs."""

import json

import numpy as np
import pytest

from farm.kinds.run.command import print_results
from farm.worker.outputs import summary_of


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([1, np.nan, 3, np.inf], ["y: 1 nan 3 inf", "y: 1 NaN and 1 infinite of 4 numbers"]),
        ([np.nan] * 20, ["y: 20 NaN of 20 numbers"]),
        ([-np.inf], ["y: -inf", "y: 1 infinite of 1 numbers"]),
        ([1, 3], ["y: 1 3"]),
        ([], []),
    ],
)
def test_numbers_that_are_not_finite_are_counted_and_small_outputs_are_whole(numbers, said, capsys):
    about = json.loads(json.dumps(summary_of("y", np.array(numbers, dtype=np.float32)), allow_nan=False))
    print_results([{"device": "pixel", "arrays": [about]}])
    assert capsys.readouterr().out.splitlines()[2:] == [f"pixel {line}" for line in said]


def test_the_summary_is_of_the_finite_numbers(capsys):
    about = summary_of("y", np.array([1, np.nan, 3, np.inf]))
    assert (about["min"], about["max"], about["mean"]) == (1, 3, 2)
    print_results([{"device": "pixel", "arrays": [about], "top_k": {"y": [{"value": 3.0, "index": 2}]}}])
    assert capsys.readouterr().out.splitlines()[-1] == "pixel y: 1 NaN and 1 infinite of 4 numbers"
