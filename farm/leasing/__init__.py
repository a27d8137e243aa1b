"""Floor 4. Leases: who holds which phone, and the guarded way to it."""

from farm.leasing.leases import Leasing
from farm.leasing.model import (
    Devices,
    Explanation,
    Holder,
    LeasePolicy,
    NoSuchLeaseError,
    NotCheckingError,
    WaitingRequest,
)

__all__ = [
    "Devices",
    "Explanation",
    "Holder",
    "LeasePolicy",
    "Leasing",
    "NoSuchLeaseError",
    "NotCheckingError",
    "WaitingRequest",
]
