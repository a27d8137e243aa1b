"""Health of phones: probes, findings, readings over time, periodic checks.

`ProbeRound` probes every device in turn, corrects what operators know of its model's thermometers (`probe.thermal`),
and stores a `Health` in its agent. `Findings` compares it with the probe before by `health_rules` (pure), publishes
what begins and ends, and returns the faults that recovery should act on; `PeriodicChecks` requests golden kernels for
devices whose last check is long ago. `series` keeps readings of the last day in memory.
"""
