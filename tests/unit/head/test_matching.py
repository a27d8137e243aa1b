"""Growing matchings beside trying everything."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from farm.head.allocator.allocator import Matching
from tests.support.allocator_model import largest_matching

graphs = st.dictionaries(
    st.sampled_from("abcde"), st.lists(st.sampled_from("uvwxy"), unique=True, max_size=5), max_size=5
)


def grown(suits):
    matching = Matching()
    return matching, [left for left, rights in suits.items() if matching.add(left, rights)]


@given(graphs)
def test_it_is_valid_and_as_large_as_possible(suits):
    matching, added = grown(suits)
    assert matching.left_of == {right: left for left, right in matching.right_of.items()}
    assert set(added) == set(matching.right_of)
    assert all(right in suits[left] for left, right in matching.right_of.items())
    assert len(added) == largest_matching(suits)


@given(graphs)
def test_the_foremost_are_matched(suits):
    """Of all sets that can be matched together, the first in the order of their members."""
    order = list(suits)
    _, added = grown(suits)
    possible = [
        chosen
        for size in range(len(order) + 1)
        for chosen in combinations(order, size)
        if largest_matching({left: suits[left] for left in chosen}) == len(chosen)
    ]
    assert tuple(added) == min(
        (chosen for chosen in possible if len(chosen) == len(added)),
        key=lambda chosen: [order.index(left) for left in chosen],
    )


def test_a_chain_is_shifted_along_its_whole_length():
    matching = Matching()
    length = 500
    for number in range(length):
        assert matching.add(number, [number, number + 1])
    assert matching.add("last", [0])
    assert matching.left_of[0] == "last"
    assert sorted(matching.left_of) == list(range(length + 1))
    assert not matching.add("too many", [0])
