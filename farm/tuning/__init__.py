"""Tuning with MetaSchedule on many phones: the runner, the builder, and the phones they take."""
