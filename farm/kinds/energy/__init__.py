"""Kind `energy`: joules of one inference, by a power meter on the phone's supply."""
