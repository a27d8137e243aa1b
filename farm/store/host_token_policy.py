"""Tokens with which a machine joins a lab as a host: their content, and the reasons to refuse one. No I/O, no clock."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from farm.common.errors import Code, NotAllowedError, UserError
from farm.common.limits import HOST_NAME
from farm.common.token_text import HOST_TOKEN, token_text, token_values

LIFE_S = 24 * 3600.0
ANOTHER = "ask an operator of the lab for another: farm host token NAME"


@dataclass(frozen=True, slots=True)
class HostToken:
    """A host's way into the lab's database, once and within 24 hours."""

    lab: str  # id of the lab
    name: str  # of the host
    url: str  # of the database, with the host's own role, without its password
    password: str  # of that role, until the host joins
    release: str  # of farm, where the token was made
    protocol: int  # of the messages there
    expires_s: float  # Unix, by the server's clock

    def text(self) -> str:
        """The text for people to copy."""
        return token_text(HOST_TOKEN, astuple(self))

    @classmethod
    def parse(cls, text: str) -> HostToken:
        """From its text.

        Raises:
            UserError: it is no token, or not all of one.
        """
        try:
            lab, name, url, password, release, protocol, expires_s = token_values(HOST_TOKEN, text)
            return cls(str(lab), str(name), str(url), str(password), str(release), int(protocol), float(expires_s))
        except (ValueError, TypeError) as error:
            raise UserError(
                "this is no host token, or not all of it", hint=f"copy the whole line; or {ANOTHER}"
            ) from error

    def check_release(self, release: str, protocol: int) -> None:
        """Whether this machine's farm may join.

        Raises:
            UserError: it is another release, or speaks another protocol.
        """
        if (release, protocol) != (self.release, self.protocol):
            raise UserError(
                f"this machine has farm {release} (protocol {protocol}), the lab {self.release} "
                f"(protocol {self.protocol}); nothing was changed",
                hint="install the lab's release here, then join",
            )

    def check_time(self, now_s: float) -> None:
        """Whether it is still good.

        Raises:
            NotAllowedError: it has expired.
        """
        if now_s >= self.expires_s:
            raise NotAllowedError("this token has expired: it was good for 24 hours", hint=ANOTHER)

    def used_error(self) -> NotAllowedError:
        """The error for a token that the database refuses."""
        return NotAllowedError(
            f"the lab's database does not take this token: {self.name} has joined with it, a later token has replaced "
            "it, or it was taken back",
            hint=ANOTHER,
        )

    def other_lab_error(self, found: str) -> UserError:
        """The error for a database that is another lab's now."""
        return UserError(
            f"the database is of lab {found or '(none)'}, this token is for lab {self.lab}; nothing was changed",
            Code.DATABASE_UNUSABLE,
            hint=f"does its name lead to another server from here? or {ANOTHER}",
        )


def check_host_name(name: str) -> None:
    """Whether a host or a builder may be called so.

    Raises:
        UserError: it may not.
    """
    if not HOST_NAME.fullmatch(name):
        raise UserError(
            f"{name[:60]!r} cannot be the name of a host or builder",
            hint="small letters, digits, - and . (at most 40), a letter or digit first",
        )


def role_of(lab: str, name: str = "") -> str:
    """The database role of a host; without a name the one that owns the lab's tables."""
    return f"farm_{lab[:8]}_{name}" if name else f"farm_{lab[:8]}"
