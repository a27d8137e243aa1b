"""Leases: which user holds which phone, and the guarded way to it.

A `LeaseRequest` waits at the head (`farm.head.request_queue`) for its grant, which is stored with a fence; then the
`Lease` is delivered and stands in `active_leases.ActiveLeases` until its holder, its device or an operator ends it, and
its `LeaseRecord` gets an end. `sessions` holds match keys and the sessions that they open. `leases.Leasing` is the
interface for jobs and verbs, `tvm.TvmLeases` the one for the TVM server. `remote_head` is the head of a host whose
head is a process of its own.
"""
