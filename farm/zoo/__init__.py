"""Networks for tests, benchmarks and the demo: built from seeds, without a download."""
