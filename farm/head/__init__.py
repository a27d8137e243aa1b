"""The head decides: which request gets which phone, and how each job continues.

`allocator` (pure) grants devices to requests, `queue` (pure) says what is to be done about each job. `request_queue`
has the waiting requests and stores each grant (`write_queue`); `Dispatcher` performs the job queue's instructions over
the store (`job_store`), `planning` turns a submit into jobs, `reservations` keeps devices for a user, `reports`
explains and sums up. `Head` is what hosts and control verbs ask, `LocalHead` the one of these parts in their process.

A request becomes a lease: `RequestQueue.receive` gets `RequestAdded` (a job's request comes with `ask`), the allocator
answers with a `Grant`, `write_queue` stores it, `LeaseGranted` goes to the host, and `LeaseArmed` comes back.

A job becomes an attempt: `Dispatcher.submit` plans and stores the job, `JobQueue` has a request made for it, and once
its lease is armed, the attempt is stored and run. A host apart gets the attempt with the grant (`AttemptClaim`) and
stores it with the arming; one of an earlier release gets it then (`RunAttempt`). `AttemptEnded` ends the job or leads
to a retry.

Nothing here reaches a phone. What holds phones, leases (farm/leasing) and attempts (farm/jobs) sends and gets the
records of `messages`, in order.
"""
