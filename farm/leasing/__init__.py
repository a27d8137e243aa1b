"""Leases: which user holds which phone, and the guarded way to it.

A `LeaseRequest` waits in `request_queue.RequestQueue`; the pure `allocator` grants it a device; the grant is written to
the store (`write_queue`) with a fence; then the `Lease` is delivered and stands in `active_leases.ActiveLeases` until
its holder, its device or an operator ends it, and its `LeaseRecord` gets an end. `sessions` holds match keys and the
sessions that they open. `leases.Leasing` is the interface for jobs and verbs, `tvm.TvmLeases` the one for the TVM
server. `reservations` keeps devices for a user, `reports` explains and sums up.
"""
