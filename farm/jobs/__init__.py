"""Jobs from submit to result: the dispatcher, attempts, workers and toolchains.

`farm.head.planning` turns a submit into jobs, `farm.head.queue` (pure) decides, `Dispatcher` performs: it asks leasing
for a phone, commits an attempt, runs it by its kind's executor (farm/kinds) and commits its end. `Supervisor` keeps a
`Zygote` for each toolchain and forks a worker for an attempt that needs TVM; `pool` gives an executor several phones.
`job_store` writes what the queue decides, and takes up at a start the jobs that the previous daemon left.
"""
