"""The job queue as a state machine. Pure: time is an argument.

`queue.JobQueue` decides: what happens is one of its methods (`job_added`, `phone_granted`, `attempt_ended` ...), which
answers with instructions (`model`: AskForPhone, StartAttempt, SaveJob ...). `retry` says what becomes of a job after an
attempt.
"""
