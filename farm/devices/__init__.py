"""Phones: found through adb, identified, provisioned, served, watched and recovered.

`Fleet` follows adb's device list and keeps one `Agent` for each device. An event (adb lists a phone, work ended, a
probe found a fault) goes to `Agent.on_event`. `lifecycle` (pure) decides: the next state and instructions. The agent
publishes the state, then carries out the instructions over adb and reports their results as events.

`DeviceViews` holds what other packages see: one immutable `DeviceView` per device, with the thermal gates applied.
`DeviceRegistry` keeps records, names, labels and aliases. `DeviceAdmin` and `RecoveryController` carry out operators'
orders. Subjects with folders of their own: identity, server (the runtime on the phone), health, thermal,
power. Modules named `*_rules` or `*_policy`, `lifecycle` and the parsers of `health/probe` do no I/O.
"""
