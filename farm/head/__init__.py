"""The head decides: which request gets which phone, and how each job continues.

`allocator` (pure) grants devices to requests, `queue` (pure) says what is to be done about each job. `request_queue`
has the waiting requests and stores each grant (`write_queue`); `Dispatcher` performs the job queue's instructions over
the store (`job_store`), `planning` turns a submit into jobs, `reservations` keeps devices for a user, `reports`
explains and sums up. `Head` is what hosts and control verbs ask, `LocalHead` the one of these parts in their process.

A request becomes a lease: `RequestQueue.receive` gets `RequestAdded` (a job's request comes with `ask`), the allocator
answers with a `Grant`, `write_queue` stores it, `LeaseGranted` goes to the host, and `LeaseArmed` comes back.

A job becomes an attempt: `Dispatcher.submit` plans and stores the job, `JobQueue` has a request made for it, and once
its lease is armed, the attempt is stored and run. A host apart gets the attempt with the grant (`AttemptClaim`) and
stores it with the arming. A host commits the end of an attempt, and that its job is done after a success; the head
gets `AttemptEnded` and stores what else becomes of the job. So a job may be running without a running attempt: its next
state is decided then, or when a head starts.

Nothing here reaches a phone. What holds phones, leases (farm/leasing) and attempts (farm/jobs) sends and gets the
records of `messages`, in order.
"""
