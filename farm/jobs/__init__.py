"""Floor 4. Jobs: specs, messages, zygotes and workers."""
