"""The life cycle of one device as a state machine. Pure: no I/O, no clock; times are arguments.

`messages` has the events (past tense) and the instructions. `state` has `LifecycleState` and the table of legal
transitions. `lifecycle.decide` turns a state and an event into the next state and instructions; `Lifecycle` guards the
table and remembers the last transitions. `recovery` has the recovery actions as data and chooses the next action
against a fault; `recovery_steps` turns that action into a state.

A typical call: a probe reports `FaultFound`; `decide` calls `recovery_steps.probe_reported`, which asks `next_action`
and enters RECOVERING with the instruction `TakeAction(REBOOT)`. The agent reboots the phone;
adb's list then brings `unlisted` and `Listed`, and the phone is identified, provisioned, started and checked again.
"""
