"""Whether two builds do the same work."""

import numpy as np
import pytest

from farm.worker.outputs import differences

RANDOM = np.random.default_rng(1)
X = RANDOM.standard_normal((1, 3, 4)).astype(np.float32)
SHARES = RANDOM.dirichlet(np.ones(10)).astype(np.float32)


@pytest.mark.parametrize("steps", [2**10, 2**7])
def test_one_model_in_fewer_bits_is_one_model(steps):
    coarse = np.round(SHARES * steps / SHARES.max()) * SHARES.max() / steps
    assert differences([X], [SHARES], [X], [coarse.astype(np.float32)]) == []


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (([X, X], [SHARES]), ["A has 1 input, B 2 inputs"]),
        (([X], []), ["A has 1 output, B 0 outputs"]),
        (([X.reshape(1, 4, 3)], [SHARES]), ["input 0 is 1x3x4 float32 in A, 1x4x3 float32 in B"]),
        (([X], [SHARES.astype(np.float16)]), ["output 0 is 10 float32 in A, 10 float16 in B"]),
        (([X], [np.float32(1)]), ["output 0 is 10 float32 in A, scalar float32 in B"]),
    ],
)
def test_other_edges_are_another_model(b, said):
    assert differences([X], [SHARES], *b) == said


@pytest.mark.parametrize(
    ("a", "b", "far"),
    [
        (SHARES, RANDOM.dirichlet(np.ones(10)).astype(np.float32), True),
        (SHARES, SHARES[::-1], True),
        (np.full(4, 2.0), np.full(4, 2.1), False),
        (np.full(4, 2.0), np.full(4, 4.5), True),
        (np.zeros(4), np.zeros(4), False),
        (np.array([1.0, np.inf]), np.array([1.0, 2.0]), True),
        (np.array([7]), np.array([2]), True),
        (np.array([True, False]), np.array([True, False]), False),
        (np.empty((0, 4)), np.empty((0, 4)), False),
    ],
)
def test_unrelated_numbers_are_another_model(a, b, far):
    said = ["for the same inputs, output 0 of B is far from that of A"]
    assert differences([X], [a], [X], [b]) == (said if far else [])


def test_numbers_for_different_inputs_say_nothing():
    assert differences([X], [SHARES], [X + 1], [SHARES[::-1]]) == []
