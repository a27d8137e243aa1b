"""Measurements of the farm beside its rivals. `python -m benchmarks NAME`, all without NAME."""
