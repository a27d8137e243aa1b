"""The head decides: which request gets which phone, and how each job goes on.

`allocator` (pure) grants devices to requests, `queue` (pure) says what is to be done about each job. `request_queue`
has the waiting requests and stores each grant (`write_queue`); `Dispatcher` performs the job queue's instructions over
the store (`job_store`), `planning` turns a submit into jobs, `reservations` keeps devices for a user, `reports`
explains and sums up.

Nothing here reaches a phone. What holds phones, leases (farm/leasing) and attempts (farm/jobs) sends and gets the
records of `messages`, in order.
"""
