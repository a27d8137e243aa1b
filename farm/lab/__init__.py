"""Connections between the hosts of a lab: TLS 1.3 with exactly the certificates of the lab's host table.

A host has one key and certificate (`identity`); `hosts` reads those of the others from the host table. `link.HostLink`
listens, and dials other hosts: the dialling host sends a preface with a *service* of the other host and the fields of
its request, and gets one answer (`wire`, without I/O). From then on the connection is a byte stream of that service.
`tls` has the ends of TLS: a thread per connection shakes hands and copies between TLS and a plain socket; services see
the plain socket only.

The services: `artifacts` (a copy of a file), `logs` (the log of an attempt), `sessions` (a TVM client of another host)
and `verbs` (a control request about a phone of another host). `bundles` needs no service: a bundle is an artifact.
"""
