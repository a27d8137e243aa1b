"""Tuning: MetaSchedule's search over a pool of phones that come and go.

`search.Search` chooses the next task (`progress`, pure), has candidates built (`builder.FarmBuilder`, which forks in a
`build_server`) and measured (`runner.PoolRunner`), and learns from the results. `database.TuningDatabase` writes each
trial the moment it is measured, so a killed run continues where it stopped.

In the runner, a `CandidateQueue` gives each candidate that is built to a `MeasurementSlot`, a thread per phone with a
reused session; `candidate.after_try` (pure) decides what becomes of a candidate whose try went wrong, and
`phone_speed.SpeedJudge` scales what each phone measures. `phones` says what a source of phones does, and has that of
this host; a job's pool is in `farm.jobs`, a user's leases in `farm.client`. A farm job
runs all of it in its worker, `farm.FarmRunner` in a script.
"""
