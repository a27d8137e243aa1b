"""The allocator: which waiting request gets which device. Pure: time is an argument.

`allocator.Allocator` has a method for each thing that may happen; each returns grants, to as many requests as possible.
`state` is everything it knows; `waiting` has the queues of requests and their order; `shares` and
`reservations` each keep one rule, `yields` says which leases are asked to yield and which devices are kept cool;
`explain` says why a request waits.
"""
