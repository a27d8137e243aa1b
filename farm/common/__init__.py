"""Base of every package: errors and their wire form, events, durations, labels, selectors, limits, small helpers.

`errors` has the root `FarmError`; a class names whose fault an error is and its exit code. `events.EventLog` numbers
and publishes events. `selector.Selector` parses `label=value[,label=value...]`. `limiter.Limiter` bounds anything per
key and in total. Nothing here imports another package of farm.
"""
