"""What decides: which request gets which phone, and what becomes of each job.

`allocator` (pure) grants devices to requests, `queue` (pure) says what is to be done about each job. `request_queue`
has the waiting requests and stores each grant (`write_queue`) before the lease is delivered, `planning` turns a submit
into jobs, `reservations` keeps devices for a user, `reports` explains and sums up.

Nothing here reaches a phone: farm/leasing and farm/jobs do, by what this package decides.
"""
