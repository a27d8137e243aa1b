"""The base of the workers of all kinds. Runs in forks of the zygote and may import TVM.

`zygote` imports TVM once and forks; `channel.run` calls the `main` of a kind's worker module with a `DaemonChannel`.
`measuring.checked_model` is how most of these begin: `session` opens an RPC session, sets threads and cores, loads a
model on the phone and runs it once; `textures` checks its texture operators. `timing` takes samples, of another
runtime's program by `programs`; `measuring` repeats a measurement that is not trusted and states its conditions;
`outputs` describes what the model computed. `checker` and `golden` check phones; `local` runs work on this host.
"""
