"""The configuration of leases, users and the lab: `[lease]`, `[quota]`, `[user.NAME]`, `[gates]`, `[lab]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from farm.common.limits import MAX_PRIORITY
from farm.model.requests import LeaseClass

Wait = Annotated[float, Field(gt=0, allow_inf_nan=False)]  # seconds


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """How long the TVM server waits for clients."""

    unused_s: Wait = 5.0  # a granted key that is never used
    idle_s: Wait = 600.0  # a session without a byte


@dataclass(frozen=True, slots=True)
class UserConfig:
    """A user's limits and weight: `[user.NAME]`, and `[quota]` for what that leaves out and for all others."""

    # share of device-seconds beside other users of the same priority
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    devices: Annotated[int, Field(ge=0)] = 0  # phones held at once, sessions and jobs together; 0: no limit
    jobs: Annotated[int, Field(ge=0)] = 100_000  # jobs not ended yet
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)] = 5  # highest they may ask for (0 .. 10)


@dataclass(frozen=True, slots=True)
class GatesConfig:
    """The class of lease for requests of stock TVM clients, by key; interactive for any other key."""

    tvm_class: Mapping[str, LeaseClass] = field(default_factory=dict)  # key = "interactive", "bench" or "tune"


@dataclass(frozen=True, slots=True)
class LabConfig:
    """This host's place in a lab of several over one database."""

    host: str = ""  # this host's name in the lab; empty: the only host of its database
    head: Literal["inside", "apart"] = "inside"  # the process that decides: this daemon, or `farm head`
    # "tcp://192.0.2.10:9194": where other hosts dial this one; empty: it dials them when they ask, if they listen
    listen: str = ""
    # a login name means one person on every host, or, with "local", one of this host: alice@lab3
    users: Literal["shared", "local"] = "shared"
    # client's CIDR -> "lab1.example.org:9190": this host's TVM port for clients of other hosts' ports
    advertise: Mapping[str, str] = field(default_factory=dict)
    # "s3://BUCKET/PREFIX": for second copies of artifacts (extra `objectstore`); empty: another host has them
    object_store: str = ""

    @property
    def users_at(self) -> str:
        """The part behind @ in the names of this host's users; "": users are shared by all hosts."""
        return self.host if self.users == "local" else ""

    @property
    def head_apart(self) -> bool:
        """Whether `farm head` decides."""
        return self.head == "apart"
