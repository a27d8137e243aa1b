"""Floor 6. Command line: one file per command group; thin."""
