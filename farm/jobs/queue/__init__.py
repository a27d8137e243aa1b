"""The job queue as a state machine. Pure: time is an argument.

Events in (`model`: JobAdded, PhoneGranted, AttemptEnded, TimePassed ...), instructions out (AskForPhone, StartAttempt,
EndAttempt, SaveJob ...). `queue.JobQueue` decides, `retry` says what becomes of a job after an attempt.
"""
