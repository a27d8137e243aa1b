"""Everything between farm and the adb servers: an asyncio client, farm's own server, and the adb of a lease.

`host_protocol` and `devices` are the wire without I/O. `AdbClient` (client.py) opens one `AdbConnection` per call:
commands (`ShellStream`), services, forwards, reboots. `push_tree` installs files that are verified by hash;
`tools` has the rare calls of people. `AdbServer` starts and ends farm's server;
`DeviceWatcher` follows its list and asks `watch_policy` what to do when it fails. `TunnelLedger` keeps forwards and
reverses. `lease_proxy.LeasedAdb` is an adb server that shows one phone to the holder of a lease.

A typical call: `client.shell(serial, command, timeout_s=...)` asks the server for the phone's transport, opens
`shell,v2` there, collects the packets and returns a `ShellResult`; any failure is a leaf of `AdbError` (errors.py).
"""
