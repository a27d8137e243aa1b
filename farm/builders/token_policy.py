"""Tokens that let a builder join: their text, and whether one may still be exchanged. No I/O, no clock."""

from __future__ import annotations

import re
from dataclasses import dataclass

from farm.common.errors import NotAllowedError, UserError
from farm.common.token_text import BUILDER_TOKEN, token_text, token_values

LIFE_S = 24 * 3600.0
KEPT_S = 7 * LIFE_S  # after its end, so that the reason can be said
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_ANOTHER = "ask an operator for another: farm builder token"


@dataclass(frozen=True, slots=True)
class BuilderToken:
    """The address of the farm, its certificate's hash, and the token to present."""

    host: str
    port: int
    authority: str  # SHA-256 of the certificate that the farm shows there
    secret: str

    def text(self) -> str:
        """As it is given to people."""
        return token_text(BUILDER_TOKEN, [self.host, self.port, self.authority, self.secret])

    @classmethod
    def parse(cls, text: str) -> BuilderToken:
        """From its text.

        Raises:
            UserError: it is no token, or not all of one.
        """
        try:
            host, port, authority, secret = token_values(BUILDER_TOKEN, text)
        except ValueError as error:
            raise UserError(
                "this is no builder token, or not all of it", hint=f"copy the whole line; or {_ANOTHER}"
            ) from error
        return cls(str(host), int(port), str(authority), str(secret))


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as stored, by the SHA-256 of its secret."""

    made_s: float  # Unix
    used_by: str = ""  # the builder; "": none yet

    def check(self, now_s: float) -> None:
        """Whether it may be exchanged now.

        Raises:
            NotAllowedError: it was, or is too old.
        """
        if self.used_by:
            raise NotAllowedError(f"this token was used already, by {self.used_by}", hint=f"once each: {_ANOTHER}")
        if now_s - self.made_s >= LIFE_S:
            raise NotAllowedError("this token has expired: it was good for 24 hours", hint=_ANOTHER)


def unknown_token_error() -> NotAllowedError:
    """The error for a token that the farm has not made, or has forgotten."""
    return NotAllowedError("this farm did not make this token, or long ago", hint=_ANOTHER)


def check_name(name: str) -> None:
    """Whether a builder may be called so.

    Raises:
        UserError: it may not.
    """
    if not NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be a builder's name", hint="--name: lower-case letters, digits, . and - (at most 63)"
        )
