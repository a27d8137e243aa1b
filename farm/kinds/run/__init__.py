"""Kind `run`: run a model once and keep its outputs."""
