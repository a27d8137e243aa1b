"""Floor 1. Decisions: pure functions and frozen values. No I/O, no clock, no await."""
