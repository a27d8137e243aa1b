"""What a bench may ask for: one place for the command line, which refuses before an upload, and the daemon."""

MAX_TIMEOUT_S = 24 * 3600.0
MAX_REPEAT = 20_000  # a sample is about 20 bytes as JSON; a result must fit one frame of 1 MiB
MAX_NUMBER = 1_000_000
