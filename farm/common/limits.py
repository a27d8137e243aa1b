"""Limits of users' requests: one place for the daemon, its configuration, and commands that refuse before an upload."""

import re

DEFAULT_PRIORITY = 1  # what stock TVM clients ask with
MAX_PRIORITY = 10
MIN_TIME_S = 0.1  # of a timeout or deadline: nothing a phone does is faster
MAX_TIMEOUT_S = 24 * 3600.0  # one attempt
MAX_LEASE_S = 7 * 24 * 3600.0  # a person's lease, extensions included
MAX_DEADLINE_S = 30 * 24 * 3600.0
MAX_WHY = 200  # characters of the reason with which a job is cancelled
DEFAULT_MAX_ATTEMPTS = 3  # a phone's fault is often a loose cable; the third phone with the same fault is no chance
MAX_ATTEMPTS = 10
MAX_AFTER = 100  # names that a submit waits for; an array is one name, and each is looked up
MAX_REPEAT = 20_000  # a sample is about 20 bytes as JSON; a result must fit one frame of 1 MiB
MAX_NUMBER = 1_000_000
MAX_CORES = 64  # of a phone; a mask of them has 16 digits
CORES_FORM = r"^(big|little|0x0*[1-9a-f][0-9a-f]{0,15})$"
MAX_TOP_K = 1000
DEFAULT_TRIALS = 1000  # of a tuning
MAX_TRIALS = 1_000_000  # of one tuning; a record is about 2 kB
MAX_RESULT_BYTES = 1 << 20  # of an attempt's result as JSON; arrays go into artifacts
MAX_ARTIFACTS = 10_000  # asked about at once
MAX_JOBS_AT_ONCE = 1000  # of one submit
# Of a host of a lab: a database role's name has 63 bytes, with the lab's id before the host's.
HOST_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
