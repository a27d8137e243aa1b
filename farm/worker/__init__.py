"""The base of the workers of all kinds. Runs in forks of the zygote and may import TVM.

`zygote` imports TVM once and forks; `channel.run` calls the `main` of a kind's worker module with a `DaemonChannel`.
`session` opens RPC sessions, loads a model on a phone and checks it, `timing` takes samples, `certificate` says under
which conditions, `outputs` describes what the model computed. `checker` and `golden` check phones; `local` runs work on
this host.
"""
