"""Which tensors lie in textures: pure decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.compiler.texture.scopes import (
    BUFFER,
    TEXTURES,
    KernelCall,
    Limits,
    choose_scopes,
    image_scope,
    report,
)

WEIGHT, NHWC, PLAIN = TEXTURES
LIMITS = Limits(side=16384, layers=2048)


@pytest.mark.parametrize(
    ("shape", "dtype", "scope"),
    [
        ((16, 64, 3, 3, 4), "float32", WEIGHT),
        ((1, 4, 112, 112, 4), "float16", NHWC),  # 4 x 112 x 112 pixels are too many for one row
        ((1, 16, 224, 224, 4), "float32", PLAIN),
        ((1, 16, 7, 7, 4), "int32", ""),
        ((1, 16, 7, 4), "float32", ""),
        ((1, 16, 7, 7, 8), "float32", ""),
    ],
)
def test_the_scope_of_a_tensor_is_the_first_whose_image_it_fits(shape, dtype, scope):
    assert image_scope(shape, dtype, LIMITS) == (scope, "")


def test_a_tensor_that_is_larger_than_any_image_is_told_with_its_size():
    told = image_scope((1, 600, 224, 224, 4), "float32", Limits(side=100, layers=50))
    assert told == ("", "its tensor 1x600x224x224x4 is no image of at most 100 pixels a side and 50 layers")


@given(st.tuples(*(st.integers(1, 300),) * 4), st.integers(1, 5000), st.integers(1, 500))
def test_an_image_never_exceeds_the_limits(pixels, side, layers):
    scope, reason = image_scope((*pixels, 4), "float32", Limits(side, layers))
    n, chunks, rows, columns = pixels
    images = {
        WEIGHT: (1, n, chunks * rows * columns),
        NHWC: (n, chunks, rows * columns),
        PLAIN: (n * chunks, rows, columns),
    }
    fitting = [name for name, (deep, *plane) in images.items() if deep <= layers and max(plane) <= side]
    assert scope == (fitting[0] if fitting else "")
    assert bool(reason) != bool(fitting)


# a: 0 -> 1, b: 1 -> 2, c: 1, 2 -> 3
CHAIN = (KernelCall("a", (0,), (1,)), KernelCall("b", (1,), (2,)), KernelCall("c", (1, 2), (3,)))


def choose(refuse, textures=(1, 2)):
    asked = []

    def build(name, scopes):
        asked.append((name, scopes))
        return refuse(name, scopes)

    return choose_scopes(CHAIN, dict.fromkeys(textures, NHWC), build), asked


def test_everything_that_may_lies_in_a_texture():
    chosen, asked = choose(lambda _name, _scopes: "")
    assert chosen.scopes == {1: NHWC, 2: NHWC}
    assert asked == [("a", (BUFFER, NHWC)), ("b", (NHWC, NHWC)), ("c", (NHWC, NHWC, BUFFER))]
    assert report(CHAIN, chosen, ["a", "b", "c"]).textures == ("a", "b", "c")


def test_an_operator_that_cannot_write_a_texture_may_still_read_one():
    chosen, asked = choose(lambda name, scopes: "no" if name == "b" and scopes[-1] == NHWC else "")
    assert chosen.scopes == {1: NHWC}
    assert ("c", (NHWC, BUFFER, BUFFER)) in asked  # built again: what it reads lies elsewhere now
    told = report(CHAIN, chosen, ["a", "b", "c"])
    assert (told.textures, told.buffers) == (("a", "b", "c"), {})


def test_an_operator_that_can_do_neither_takes_its_neighbours_tensors_along():
    chosen, _ = choose(lambda name, _scopes: "it is wrong" if name == "c" else "")
    assert chosen.scopes == {}
    told = report(CHAIN, chosen, ["a", "b", "c"])
    assert told.textures == ()
    assert told.buffers["c"] == "it is wrong"
    assert "shared with operators that need buffers" in told.buffers["a"]


@given(st.data())
def test_a_choice_always_ends_with_what_can_be_built(data):
    count = data.draw(st.integers(1, 6))
    operators = tuple(
        KernelCall(
            f"f{data.draw(st.integers(0, 3))}", tuple(data.draw(st.lists(st.integers(0, at), max_size=3))), (at + 1,)
        )
        for at in range(count)
    )
    refused = data.draw(st.sets(st.tuples(st.integers(0, 3), st.booleans(), st.booleans())))

    def build(name, scopes):
        kind = int(name[1:]), any(each != BUFFER for each in scopes[:-1]), scopes[-1] != BUFFER
        return "no" if kind in refused else ""

    chosen = choose_scopes(operators, dict.fromkeys(range(count + 2), PLAIN), build)
    for operator in operators:
        scopes = chosen.of(operator)
        assert all(each == BUFFER for each in scopes) or build(operator.function, scopes) == ""
