"""Connections between the hosts of a lab: TLS 1.3 with exactly the certificates of the lab's host table.

A host has one key and certificate (`identity`). `link.HostLink` listens, and dials other hosts; who connects sends a
preface that names a *service* of the other host and what it wants there, and gets one answer (`wire`, without I/O).
From then on the connection is a stream of bytes of that service. `tls` has the ends of TLS: a thread per connection
shakes hands and copies between TLS and a plain socket, which is all that services see.
"""
