"""The composition roots: of `farm serve`, one file per group of parts, and of `farm head`."""
