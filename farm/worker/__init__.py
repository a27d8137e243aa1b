"""The base of the workers of all kinds. Runs in forks of the zygote and may import TVM.

`zygote` imports TVM once and forks; `channel.run` calls the `main` of a kind's worker module with a `DaemonChannel`.
`checked_model` is how most of these begin: `session` opens an RPC session, loads a model on the phone and runs it once,
`textures` checks its texture operators, `placing` sets threads and cores. `timing` takes samples, of another runtime's
program by `programs`; `measuring` repeats a measurement that is not trusted, `certificate` states its conditions and
`outputs` describes what the model computed. `driver_errors` explains refusals of a GPU's driver. `checker` and `golden`
check phones; `local` runs work on this host.
"""
