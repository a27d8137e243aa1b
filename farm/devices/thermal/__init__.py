"""The thermal gate: which classes of leases a hot phone is closed to, why, and for about how long.

`thermal_rules` (pure) has the limits of each model, takes probes and closes and opens classes with
hysteresis; `cooling_rules` (pure) estimates the remaining time from how the phone cooled before. `ThermalGates` keeps
the state of every device and applies it to `DeviceView`s, with the noise of neighbours on the same hub.
"""
