import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code, UserError
from farm.compiler.shape_option import check_dtype, parse_dtypes, parse_shapes, shape_option
from tests.support.errors import raises_code
from tests.support.golden import rows


def test_shapes_are_read_as_typed():
    texts = ["input:[1,3,224,224]", "ids : [ 1 , 77 ]", "scalar:[]", "serving_default_x:0:[4]"]
    assert parse_shapes(texts) == {
        "input": (1, 3, 224, 224),
        "ids": (1, 77),
        "scalar": (),
        "serving_default_x:0": (4,),
    }


@pytest.mark.parametrize(
    ("text", "said"), [*rows(__file__, "no_shapes"), ("input:[" + ",".join("1" * 17) + "]", "17 dimensions")]
)
def test_what_is_no_shape_is_said(text, said):
    with raises_code(Code.BAD_SHAPE, match=said.replace("[", r"\[")):
        parse_shapes([text])


def test_a_name_counts_once():
    with raises_code(Code.BAD_SHAPE, match="'x' twice"):
        parse_shapes(["x:[1]", "x:[2]"])
    with raises_code(Code.BAD_SHAPE, match="'x' twice"):
        parse_dtypes(["x:int8", "x:int8"])


def test_dtypes_are_read_and_the_nearest_is_named():
    assert parse_dtypes(["input:float16", "a:b:int8"]) == {"input": "float16", "a:b": "int8"}
    with raises_code(Code.BAD_SHAPE) as caught:
        parse_dtypes(["input:flaot16"])
    assert caught.value.hint == "did you mean float16?"
    with raises_code(Code.BAD_SHAPE, match="no type"):
        check_dtype("zzz")


@given(st.lists(st.integers(1, 1 << 24), max_size=16))
def test_what_a_hint_tells_to_type_is_read_back(shape):
    typed = shape_option("a:b", shape).removeprefix("--shape '").removesuffix("'")
    assert parse_shapes([typed]) == {"a:b": tuple(shape)}


@given(st.text(max_size=40))
def test_any_text_is_a_shape_or_refused(text):
    try:
        parsed = parse_shapes([text])
    except UserError:
        return
    assert all(size >= 1 for shape in parsed.values() for size in shape)
