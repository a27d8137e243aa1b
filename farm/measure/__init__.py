"""Statistics over timed samples. Pure: no I/O, no clock, no randomness but from fixed seeds.

`series` checks samples, holds them (`SampleSeries`) and takes the phone's clock out by a reference kernel, `interval`
says how sure a median is (`MedianEstimate`, `SampleSummary`), `patterns` finds warm-up, steps, trends, modes and
outliers, and `conditions` has the phone's conditions and the verdict (`Verdict`, `Reason`).

`assess.assess(samples, nominal_s)` runs all of it and returns the `Assessment` in a measurement's certificate;
`more_samples` and `measure_again` say whether to continue. `comparison.compare` says which of two builds is faster,
from samples taken in turns; `regression.changes` finds changes of level in a history of results.
`sweep.estimates` says which of several settings is the fastest; `sustained.sustained` finds in a long run when the
phone throttles, and its plateau.
`quality` says how right a model's outputs are, and compares two builds on the same labelled inputs.
`energy.estimate` gives the joules of an inference from idle and busy windows of power readings.
"""
