"""Kind `energy`: joules of one inference, by the phone's power meter, its power rails or its fuel gauge."""
