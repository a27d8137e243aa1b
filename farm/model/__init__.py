"""Records that several subjects share: devices, health, jobs, leases, sessions, events. No behaviour but invariants."""
