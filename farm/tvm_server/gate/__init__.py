"""The gate: opens a phone for the holder of a match key and copies the session's bytes.

`gate.Gate` asks a `Route` for the phone; `relay.Relay` copies with backpressure. In the daemon the route is leasing. In
`farm gate` (`process`) it is `forwarding.RemoteRoute`, which asks the daemon over a unix socket (`link`, `messages`)
and keeps each session until a daemon has noted its end. `forwarding.FdHandoff` passes tracker clients to the daemon
with their descriptors; `remote_server` and `sessions` are the daemon's side.

Each object that holds a session: `gate._RelayedSession` has the client's connection; `forwarding._GrantedSession` is
what `farm gate` keeps until a daemon has noted the end; `sessions._SessionAtGate` is what the daemon knows of it; and
`farm.leasing.sessions.LeaseSession` is the one session that a lease may have.
"""
