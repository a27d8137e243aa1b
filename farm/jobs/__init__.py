"""Jobs on their host: attempts, workers and toolchains.

`farm.head` decides: it plans a submit, asks for a phone and commits an attempt. `Attempts` runs it by its kind's
executor (farm/kinds) and commits its end. `Supervisor` keeps a `Zygote` for each toolchain and forks a worker for an
attempt that needs TVM; `pool` gives an executor several phones.
"""
