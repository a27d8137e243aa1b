"""Wrong values are told in farm's words, whatever pydantic calls them."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from farm.common.field_errors import field_error


@dataclass
class Inner:
    jobs: int = 1


@dataclass
class Form:
    name: Annotated[str, Field(min_length=1, max_length=5)] = "x"
    count: Annotated[int, Field(ge=1, le=1000)] | Literal["all"] = 1
    wait_s: Annotated[float, Field(gt=0, le=86400.0)] = 1.0
    after: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    hold: bool = False
    model: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = "0" * 64
    user: dict[str, Inner] = field(default_factory=dict)
    fill: Literal["zeros", "ones"] = "ones"


WRONG = {
    "empty": ({"name": ""}, "name", "must not be empty (got '')"),
    "long": ({"name": "abcdef"}, "name", "must have at most 5 characters (got 'abcdef')"),
    "union": ({"count": "two"}, "count", "must be a whole number or 'all' (got 'two')"),
    "union range": ({"count": 0}, "count", "must be 1 or more or 'all' (got 0)"),
    "range": ({"wait_s": 1e6}, "wait_s", "must be 86400 or less (got 1000000.0)"),
    "above": ({"wait_s": 0}, "wait_s", "must be more than 0 (got 0)"),
    "no list": ({"after": "a"}, "after", "must be a list (got 'a')"),
    "item": ({"after": ["a", ""]}, "after.1", "must not be empty (got '')"),
    "bool": ({"hold": 5}, "hold", "must be true or false (got 5)"),
    "hash": ({"model": "zz"}, "model", "must be a SHA-256, 64 hexadecimal digits (got 'zz')"),
    "no table": ({"user": 5}, "user", "must be a table (got 5)"),
    "no inner table": ({"user": {"bob": 5}}, "user.bob", "must be a table (got 5)"),
    "deep": ({"user": {"bob": {"jobs": 1.5}}}, "user.bob.jobs", "must be a whole number (got 1.5)"),
    "switch": ({"fill": True}, "fill", "must be 'zeros' or 'ones' (got true)"),
    "choice": ({"fill": "twos"}, "fill", "must be 'zeros' or 'ones' (got 'twos')"),
}


@pytest.mark.parametrize(("given", "where", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_told_in_our_words(given, where, said):
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Form).validate_python(given)
    assert field_error(raised.value.errors()) == (where, said, "")


@pytest.mark.parametrize(("given", "hint"), [("10m", "it is in seconds: 600"), ("soon", "it is in seconds, a number")])
def test_a_duration_where_seconds_belong_is_translated(given, hint):
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Form).validate_python({"wait_s": given})
    assert field_error(raised.value.errors()) == ("wait_s", f"must be a number (got {given!r})", hint)
