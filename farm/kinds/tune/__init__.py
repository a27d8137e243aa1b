"""Kind `tune`: search for fast schedules on identical phones; `tune_here` does it on this host."""
