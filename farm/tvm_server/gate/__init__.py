"""The gate: opens a phone for the holder of a match key and copies the session's bytes.

`gate.Gate` asks a `Route` for the phone; `relay.Relay` copies with backpressure. In `farm gate` (`process`) the route
is `forwarding.RemoteRoute`, which asks the daemon over a unix socket (`link`, `messages`) and keeps each session until
a daemon has noted its end. `forwarding.FdHandoff` passes tracker clients to the daemon with their descriptors. The
daemon's side is `farm.tvm_server.server` and `sessions`, whose route is leasing.

Each object that holds a session: `gate._RelayedSession` has the client's connection; `forwarding._GrantedSession` is
what `farm gate` keeps until a daemon has noted the end; `sessions._SessionAtGate` is what the daemon knows of it; and
`farm.leasing.sessions.LeaseSession` is the one session that a lease may have.
"""
