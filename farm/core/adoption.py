"""Adoption: which phones the farm may touch, under which name and in which pool (DESIGN D5).

A phone that appears is listed and identified, nothing more, until an operator adopts it or an `[[adopt]]` rule matches.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.core.errors import UserError
from farm.core.identity import DeviceIdentity
from farm.core.labels import ANY_PHONE, aliases_of, labels_of, normalise, unique
from farm.core.selector import Selector, nearest

DEFAULT_NAME = "{model}"
NAME_FIELDS = ("model", "market", "vendor", "soc", "gpu", "serial")


class BadRuleError(UserError):
    """An `[[adopt]]` rule cannot be used."""

    code = "config"


@dataclass(frozen=True, slots=True)
class AdoptRule:
    """Phones that match `match` are adopted when they appear. `name` may use {model}, {soc}, {serial}."""

    match: str  # a selector; the first rule that matches decides
    pool: str = ""  # the pool that they come into
    name: str = ""  # may use {model} {soc} {serial}; empty: the model's


@dataclass(frozen=True, slots=True)
class AdoptionRule:
    """Phones that `selector` means join `pool` under a name made from `template`."""

    selector: Selector
    pool: str = ""
    template: str = DEFAULT_NAME

    @classmethod
    def parse(cls, match: str, pool: str = "", name: str = "") -> AdoptionRule:
        """Check and parse a rule as configured.

        Raises:
            SelectorError: `match` does not follow the selector grammar.
            BadRuleError: the name template has a field that does not exist, or no valid form.
        """
        selector = Selector.parse(match)
        template = name or DEFAULT_NAME
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            raise BadRuleError(f"adopt rule {match!r}: the name {name!r} is not a template: {error}") from error
        for _, wanted, spec, conversion in parts:
            if wanted is not None and (wanted not in NAME_FIELDS or spec or conversion):
                close = nearest(wanted, NAME_FIELDS)
                hint = (
                    f"nearest is {{{close[0]}}}" if close else f"use {', '.join(f'{{{name}}}' for name in NAME_FIELDS)}"
                )
                raise BadRuleError(f"adopt rule {match!r}: the name has no field {{{wanted}}}", hint=hint)
        return cls(selector, normalise(pool), template)


@dataclass(frozen=True, slots=True)
class Adoption:
    """Adopt the phone: its name from now on, its pool, and the rule that said so."""

    name: str
    pool: str
    rule: AdoptionRule | None = None


def decide_adoption(
    rules: Sequence[AdoptionRule], identity: DeviceIdentity, serial: str, taken: Collection[str]
) -> Adoption | None:
    """Whether a phone that is not adopted yet shall be, by the first rule that matches it; None: leave it alone.

    Args:
        rules: in the order they are configured.
        identity: of the phone.
        serial: as adb lists it.
        taken: names that are in use, and aliases of other devices.
    """
    labels = labels_of(identity, "", serial=serial)
    aliases = aliases_of(identity, "", labels)
    for rule in rules:
        if rule.selector.matches(labels, aliases):
            return Adoption(device_name(identity, serial, taken, rule.template), rule.pool, rule)
    return None


def device_name(
    identity: DeviceIdentity | None, serial: str, taken: Collection[str], template: str = DEFAULT_NAME
) -> str:
    """A name that is a legal TVM key and that nothing else in the farm answers to.

    `{model}` is what is printed on the box when the phone knows it, else the vendor's model number. When nothing of the
    template survives (a market name without Latin letters), vendor and model number are used, then the serial.
    """
    fields = _name_fields(identity, serial)
    own_aliases = {ANY_PHONE, normalise(fields["soc"]), normalise(fields["gpu"])}
    for candidate in (template, "{vendor}-{number}", "{serial}"):
        if name := normalise(candidate.format_map(fields)):
            return unique(name, {*taken, *own_aliases})
    return unique("phone", taken)


def _name_fields(identity: DeviceIdentity | None, serial: str) -> Mapping[str, str]:
    if identity is None:
        return dict.fromkeys((*NAME_FIELDS, "number"), "") | {"serial": serial}
    market = identity.market_name if _is_latin(identity.market_name) else ""
    return {
        "model": market or identity.model,
        "market": market,
        "number": identity.model,
        "vendor": identity.vendor,
        "soc": identity.soc.model,
        "gpu": identity.gpu.model,
        "serial": serial,
    }


def _is_latin(text: str) -> bool:
    """Whether normalising keeps every word: of "真我GT NEO 3" it would keep a half that names another phone."""
    return all(not character.isalpha() or normalise(character) for character in text)


def rules_of(configured: Iterable[AdoptRule]) -> tuple[AdoptionRule, ...]:
    """Parse every configured rule; raises as `AdoptionRule.parse` does."""
    return tuple(AdoptionRule.parse(rule.match, rule.pool, rule.name) for rule in configured)
