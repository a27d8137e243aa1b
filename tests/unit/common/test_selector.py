"""Selectors: grammar, canonical form, matching, and errors that name the nearest value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.common.errors import Code, NoPhoneError, UserError
from farm.common.selector import MAX_SELECTOR_LENGTH, Selector, nearest, normalise
from tests.support.errors import raises_code
from tests.support.golden import rows

PIXEL = ({"gpu": "mali-g78", "soc": "tensor", "pool": "lab", "name": "pixel-6"}, ("android", "mali-g78", "pixel-6"))
POCO = ({"gpu": "adreno-740", "soc": "sm8550", "pool": "bench", "name": "poco"}, ("android", "adreno-740", "poco"))

words = st.text(st.characters(codec="utf-8"), max_size=20)
values = words.map(normalise).filter(bool)
label_names = st.from_regex(r"[a-z][a-z0-9_-]{0,10}", fullmatch=True)
selectors = st.builds(
    lambda aliases, labels: Selector(tuple(sorted(aliases)), tuple(sorted(labels.items()))),
    st.sets(values, max_size=3),
    st.dictionaries(label_names, values, max_size=3),
).filter(lambda selector: selector.aliases or selector.labels)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("gpu=adreno-740,pool=lab", "gpu=adreno-740,pool=lab"),
        ("pool=lab,gpu=adreno-740", "gpu=adreno-740,pool=lab"),
        (" GPU = Adreno 740 , POOL=Lab ", "gpu=adreno-740,pool=lab"),
        ("android", "android"),
        ("pool=lab,android,android", "android,pool=lab"),
        ("gpu=a,gpu=A", "gpu=a"),
        ("soc=MT6853V/TNZA", "soc=mt6853v-tnza"),
    ],
)
def test_parse_gives_the_canonical_form(text, canonical):
    assert str(Selector.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "named"),
    [*rows(__file__, "broken_selectors"), ("a" * (MAX_SELECTOR_LENGTH + 1), str(MAX_SELECTOR_LENGTH))],
)
def test_what_breaks_the_grammar_is_named(text, named):
    with raises_code(Code.BAD_SELECTOR) as caught:
        Selector.parse(text)
    assert named in caught.value.message
    assert "\n" not in caught.value.message


@given(selectors)
def test_text_and_selector_are_two_forms_of_one_thing(selector):
    again = Selector.parse(str(selector))
    assert again == selector
    assert hash(again) == hash(selector)


@given(st.text())
def test_any_text_is_a_selector_or_a_user_error(text):
    try:
        selector = Selector.parse(text)
    except UserError as error:
        assert error.message  # noqa: PT017 (the other outcome is just as good)
    else:
        assert Selector.parse(str(selector)) == selector


def test_matching_is_and():
    selector = Selector.parse("android,gpu=adreno-740")
    assert selector.matches(*POCO)
    assert not selector.matches(*PIXEL)
    assert not Selector.parse("android,gpu=adreno-740,pool=lab").matches(*POCO)
    assert not Selector.parse("vendor=xiaomi").matches(*POCO)


def test_explain_is_empty_exactly_when_it_matches():
    assert Selector.parse("android,pool=bench").explain(*POCO) == ""
    explained = Selector.parse("tensor,pool=lab,vendor=google").explain(*POCO)
    assert explained == "does not answer to 'tensor'; pool is bench, not lab; has no vendor"


@given(selectors, st.dictionaries(label_names, values, max_size=3), st.sets(values, max_size=3))
def test_explain_agrees_with_matches(selector, labels, aliases):
    assert selector.matches(labels, aliases) == (selector.explain(labels, aliases) == "")


@pytest.mark.parametrize(
    ("text", "message", "shown_by"),
    [
        ("gpu=adreno-74", "no phone matches gpu=adreno-74: nearest is adreno-740", "show NAME"),
        ("gpu=powervr", "no phone matches gpu=powervr: there is adreno-740, mali-g78", "show NAME"),
        (
            "gpuu=adreno-740",
            "no phone matches gpuu=adreno-740: no phone has a label 'gpuu'; nearest is gpu",
            "show NAME",
        ),
        ("pixel", "no phone matches pixel: nearest is pixel-6", "list"),
        (
            "gpu=adreno-740,pool=lab",
            "no phone matches gpu=adreno-740,pool=lab: each part has phones, but no phone has all",
            "list",
        ),
    ],
)
def test_no_match_names_the_nearest(text, message, shown_by):
    error = Selector.parse(text).no_match([PIXEL, POCO])
    assert isinstance(error, NoPhoneError)
    assert error.message.startswith(message)
    assert f"`farm device {shown_by}`" in error.hint  # the list has no labels


def test_a_serial_number_is_told_as_one():
    phone = ({**POCO[0], "serial": "emulator-50502"}, POCO[1])
    assert Selector.parse("emulator-50502").no_match([PIXEL, phone]).hint == "--on serial=emulator-50502"


def test_no_match_without_phones_says_so():
    assert Selector.parse("android").no_match([]).message == "no phone matches android: there is no phone"


def test_nearest_prefers_continuations_then_likeness():
    known = ["adreno-640", "adreno-740", "mali-g78", "adreno-74-lite"]
    assert nearest("adreno-74", known)[:2] == ("adreno-740", "adreno-74-lite")
    assert nearest("mail-g78", known) == ("mali-g78",)
    assert nearest("zzz", known) == ()
