"""Kind `untethered`: joules of a program's run on a phone without its cable, by the phone's own fuel gauge."""
