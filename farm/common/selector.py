"""Labels and aliases, the names of devices, and selectors over them: which devices a request means.

A selector is `label=value[,label=value...]`: terms are joined by AND, a bare word is an alias, there is no OR.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import TypeVar

from farm.common.errors import Code, NoPhoneError, UserError

T = TypeVar("T")

MAX_VALUE_LENGTH = 96  # characters; a longer property value is no name any more and would break tables
_NUMBERED = re.compile(r"([^0-9]*)([0-9]{0,18})")
_FORBIDDEN_RUN = re.compile(r"[^a-z0-9._-]+")


def normalise(value: str) -> str:
    """Return `value` as a label value: lower case, each run outside `[a-z0-9._-]` replaced by one `-`.

    The result never holds `:`, whitespace or quotes, so it is always a legal stock TVM key: one row with such a key
    breaks every stock RPCRunner. It is empty when nothing of the value survives. Dashes at either end go, because a
    value that starts with one reads like a command line option. Idempotent.
    """
    return _FORBIDDEN_RUN.sub("-", value.strip().lower()).strip("-")[:MAX_VALUE_LENGTH].rstrip("-")


def unusable(value: str) -> str:
    """The first character of a value from a person that `normalise` may not replace; empty: there is none.

    A letter or digit that is not ASCII, without which it is another word, or a separator of selectors.
    """
    return next((each for each in value.lower() if each in ",=" or (each.isalnum() and not each.isascii())), "")


def checked_value(raw: str, what: str) -> str:
    """A pool, key, or key or value of a label from a person, normalised. `what`: the word for it in the error.

    Raises:
        UserError: nothing of it survives, a character of it is unusable, or it is too long.
    """
    name, wrong = normalise(raw), unusable(raw)
    if wrong or not name or len(raw.strip()) > MAX_VALUE_LENGTH:
        shown = f"{raw[:MAX_VALUE_LENGTH]!r} cannot be {what}" + (f": it has {wrong!r}" if wrong else "")
        raise UserError(shown, hint=f"use letters, digits and . _ -, at most {MAX_VALUE_LENGTH} characters")
    return name


def unique(value: str, taken: Collection[str]) -> str:
    """Return `value`, or `value-2`, `value-3` ... when it is already in `taken`."""
    candidate, number = value, 1
    while candidate in taken:
        number += 1
        candidate = f"{value}-{number}"
    return candidate


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """The sort key by which people list names: `a-2` before `a-10`."""
    return tuple((text, int(number or 0)) for text, number in _NUMBERED.findall(name.lower()))


def of_model(tables: Mapping[str, T], model: str) -> T | None:
    """The table for a phone's model (`ro.product.model`), however either is spelt."""
    return {normalise(name): each for name, each in tables.items()}.get(normalise(model)) if model else None


MAX_SELECTOR_LENGTH = 1024  # characters; far beyond any sensible selector, small enough to log
HOST = "host"  # in place of a selector, and as a target: this machine
NEAREST_SHOWN = 3  # suggestions in an error message
SIMILAR = 0.6  # difflib ratio from which two words look like one misspelt (difflib's own default cutoff)
GRAMMAR = "label=value[,label=value...] or an alias, e.g. gpu=adreno-740,pool=lab or android"

_LABEL = re.compile(r"[a-z][a-z0-9_-]*")

Described = tuple[Mapping[str, str], Collection[str]]  # one device's labels and aliases


selector_error = partial(UserError, code=Code.BAD_SELECTOR)


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed selector in canonical order: equal meaning compares, hashes and prints equal."""

    aliases: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Parse `text`; values are normalised, so `gpu=Adreno 740` means `gpu=adreno-740`.

        Raises:
            UserError: the text does not follow the grammar; the message names the offending term.
        """
        if not text.strip():
            raise selector_error("the selector is empty", hint=f"write {GRAMMAR}")
        if len(text) > MAX_SELECTOR_LENGTH:
            raise selector_error(
                f"the selector is {len(text)} characters long; at most {MAX_SELECTOR_LENGTH} are allowed"
            )
        aliases: set[str] = set()
        labels: dict[str, str] = {}
        for term in text.split(","):
            name, has_value, raw = term.partition("=")
            if not has_value:
                aliases.add(_value(term, term))
                continue
            label, value = name.strip().lower(), _value(raw, term)
            if not _LABEL.fullmatch(label):
                raise selector_error(
                    f"selector term {term.strip()!r}: {name.strip()!r} is not a label", hint=f"write {GRAMMAR}"
                )
            if labels.setdefault(label, value) != value:
                raise selector_error(
                    f"the selector wants {label}={labels[label]} and {label}={value}: no phone can be both",
                    hint="terms are joined by AND; there is no OR",
                )
        return cls(tuple(sorted(aliases)), tuple(sorted(labels.items())))

    @classmethod
    def of_alias(cls, alias: str) -> Selector:
        """The selector of one alias (a stock TVM key).

        Raises:
            UserError: nothing of the alias survives normalisation, or a character of it is unusable.
        """
        return cls(aliases=(_value(alias, alias),))

    def __str__(self) -> str:
        return ",".join((*self.aliases, *(f"{label}={value}" for label, value in self.labels)))

    def matches(self, labels: Mapping[str, str], aliases: Collection[str]) -> bool:
        """Whether a device with these normalised `labels` and `aliases` matches."""
        return all(labels.get(label) == value for label, value in self.labels) and all(
            alias in aliases for alias in self.aliases
        )

    def explain(self, labels: Mapping[str, str], aliases: Collection[str]) -> str:
        """Why a device does not match, one line; empty when it does."""
        reasons = [f"does not answer to {alias!r}" for alias in self.aliases if alias not in aliases]
        for label, wanted in self.labels:
            value = labels.get(label)
            if value is None:
                reasons.append(f"has no {label}")
            elif value != wanted:
                reasons.append(f"{label} is {value}, not {wanted}")
        return "; ".join(reasons)

    def no_match(self, devices: Iterable[Described]) -> NoPhoneError:
        """The error for "none of `devices` matches", naming the nearest values that exist.

        The first term that no device meets is the culprit; when each term is met by some device but never all by one,
        the combination is.
        """
        known = [(labels, aliases) for labels, aliases in devices]
        if not known:
            return NoPhoneError(
                f"no phone matches {self}: there is no phone", hint="plug one in; `farm device list` shows it"
            )
        listing = "`farm device list` shows what there is"
        labelled = "`farm device show NAME` lists the labels of a phone"
        known_labels = sorted({label for labels, _ in known for label in labels})
        for label, wanted in self.labels:
            values = sorted({labels[label] for labels, _ in known if label in labels})
            if wanted in values:
                continue
            if values:
                return NoPhoneError(f"no phone matches {label}={wanted}: {_nearest(wanted, values)}", hint=labelled)
            return NoPhoneError(
                f"no phone matches {label}={wanted}: no phone has a label {label!r}; {_nearest(label, known_labels)}",
                hint=labelled,
            )
        answered = sorted({alias for _, aliases in known for alias in aliases})
        for alias in self.aliases:
            if any(labels.get("serial") == alias for labels, _ in known):
                return NoPhoneError(f"no phone matches {alias}: it is a serial number", hint=f"--on serial={alias}")
            if alias not in answered:
                return NoPhoneError(f"no phone matches {alias}: {_nearest(alias, answered)}", hint=listing)
        return NoPhoneError(
            f"no phone matches {self}: each part has phones, but no phone has all of them", hint=listing
        )


def nearest(word: str, known: Iterable[str], limit: int = NEAREST_SHOWN) -> tuple[str, ...]:
    """Up to `limit` of `known` that look like `word`, whatever the case; words that merely continue it come first."""
    scored, word = [], word.lower()
    for candidate in set(known):
        ratio = SequenceMatcher(None, word, candidate.lower(), autojunk=False).ratio()
        starts = bool(word) and candidate.lower().startswith(word)
        if starts or ratio >= SIMILAR:
            scored.append((not starts, -ratio, candidate))
    return tuple(candidate for _, _, candidate in sorted(scored)[:limit])


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """A hint about a word that is not among `known`: the nearest one, else `otherwise`."""
    close = nearest(word, known, 1)
    return f"did you mean {close[0]}?" if close else otherwise


def _value(raw: str, term: str) -> str:
    if wrong := unusable(raw):
        raise selector_error(f"selector term {term.strip()!r}: no key or value has {wrong!r}", hint=f"write {GRAMMAR}")
    value = normalise(raw)
    if not value:
        raise selector_error(f"selector term {term.strip()!r} has no value", hint=f"write {GRAMMAR}")
    return value


def _nearest(word: str, known: Collection[str]) -> str:
    found = nearest(word, known)
    if found:
        return f"nearest is {' or '.join(found)}"
    shown, more = sorted(known)[:NEAREST_SHOWN], len(known) - NEAREST_SHOWN
    return f"there is {', '.join(shown)}{f' and {more} more' if more > 0 else ''}" if known else "there is none"
