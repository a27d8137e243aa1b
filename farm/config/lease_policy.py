"""The policy of leases as the configuration has it, for a daemon and for a head apart."""

from __future__ import annotations

from farm.common.selector import normalise
from farm.config import FarmConfig
from farm.head.allocator.model import AllocatorPolicy
from farm.head.model import LeasePolicy


def lease_policy(config: FarmConfig) -> LeasePolicy:
    """How long leasing waits, and users' limits."""
    return LeasePolicy(
        unused_s=config.lease.unused_s,
        allocator=AllocatorPolicy(workers=config.jobs.workers),
        quota=config.quota,
        users=config.user,
        tvm_class={normalise(key): lease_class for key, lease_class in config.gates.tvm_class.items()},
    )
