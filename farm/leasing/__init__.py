"""Floor 4. Leases: who holds which phone, and the guarded way to it."""

from farm.leasing.leases import Leasing
from farm.leasing.model import (
    Devices,
    Explanation,
    Holder,
    LeaseEndedError,
    LeasePolicy,
    NoSuchLeaseError,
    NotCheckingError,
    PhoneLostError,
)

__all__ = [
    "Devices",
    "Explanation",
    "Holder",
    "LeaseEndedError",
    "LeasePolicy",
    "Leasing",
    "NoSuchLeaseError",
    "NotCheckingError",
    "PhoneLostError",
]
