"""Kind `program`: time a model under another runtime, by that runtime's own benchmark program."""
