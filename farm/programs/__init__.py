"""Programs that time a model by themselves: the benchmark tools of other runtimes, and people's own.

A description (`description.py`; those of known tools are the files in `builtin/`) states the command, its placeholders,
and the format of what it prints. `packing.py` makes one artifact of a description with the program's files, and
says whether they run on a phone. `outputs.py` has a parser per format: text in, samples out, nothing else.

How a `farm bench --runtime litert net.tflite` goes through it: `builtin` and `packed` (client) -> artifact ->
`unpacked` and `check_files` (daemon), which pushes the files and runs `command_line` ->
`read_output` (worker) -> farm.measure.
"""
