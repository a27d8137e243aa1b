"""Kind `compare`: time two builds in turns on the same phone and say which is faster."""
