"""The control channel: requests of people and workers to the daemon, over ZeroMQ.

A client (`client.ControlClient`, farm.client) sends a message (`messages`) to a socket (`listeners`: unix, or TCP with
CURVE keys). `router.Router` decodes it, applies the `limits` and runs one task a call. `server.ControlServer` finds the
caller's role (`callers`), calls the verb's handler (`verbs/`) and writes the audit row before the answer leaves.
`server.WorkerServer` is the same for workers, admitted by a token of their attempt. `artifacts` keeps uploaded files,
`address` finds the daemon.
"""
