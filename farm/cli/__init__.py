"""The command line: one module for a command group. It imports neither TVM nor the daemon's packages for `farm status`.

`main` lists the commands and imports one when it is called. `connection` reaches the daemon, `output` prints (`emit()`:
tables or JSON), `work` submits jobs and waits, `spec_options` makes options of a kind's spec.
"""
