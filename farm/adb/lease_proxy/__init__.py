"""The adb server of a lease: real adb clients see one phone.

`proxy` serves a client, `requests` (no I/O) decides what it may ask, `tunnels` keeps its forwards and reverses.
"""
