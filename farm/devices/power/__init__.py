"""USB: where phones are plugged in, which were lost together, and the power of their ports.

`switchboard.place_of` finds a phone's port; `switchboard.UsbFaults` publishes losses, and `power_rules` (pure)
attributes each to the phone, its hub or the host. `Switchboard` picks the switch of a port by `power_rules`, notes
ports on disk before they lose power and restores them after a crash; `power.cycle` cuts and restores one port through
uhubctl or a lab's own command.
"""
