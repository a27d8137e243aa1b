"""Kind `shell`: run a line in the shells of phones."""
