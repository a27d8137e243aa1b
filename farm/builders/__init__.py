"""Builders: CPU machines that build tuning candidates for this farm, over dask.distributed.

`process.BuildersProcess` (in the daemon) starts `server`, a child process with dask's scheduler: dask unpickles nothing
in the daemon. A builder is a member of the lab as a host is: a row in the store has its certificate
(farm.lab.identity), and `tls` lets in these certificates only. `membership` exchanges a token for such a row. `worker`
is what a builder runs, dask's worker around today's build server. `table_policy` decides (pure): which builder gets a
candidate, which ones are silent or excluded, which failures are the candidate's fault, and whether an answer is valid.

A candidate's way: farm.tuning.builder places it and sends it over a unix socket to `server`; `broker` gives it to a
builder of its identity (farm.tuning.build_process) and checks the answer. Whatever goes wrong on that way, the
candidate is built on the host as if there were no builders.
"""
