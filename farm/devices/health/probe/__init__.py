"""A phone's health in one adb round trip.

`probe_round.probe` sends the command of `parse`, which cuts the output into sections, gives each to its parser and
builds a `Health`. The parsers (`battery`, `system`, `thermal`) are pure and never raise: a value
that cannot be trusted is left out and listed in `Health.dropped` with the reason.
"""
