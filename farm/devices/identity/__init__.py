"""The identity of a phone: SoC, GPU, CPU, TVM targets; its name, labels and adoption.

`identity.read_identity` runs one read-only shell command; `identify` turns its output into a `DeviceIdentity` with the
parsers of `cpu` and `soc` and the targets of `targets`. `naming_rules` decides whether farm may touch the phone, names
it, and derives the labels that selectors match. `serial_migration` moves the record of a phone that adb lists under
another serial.
"""
