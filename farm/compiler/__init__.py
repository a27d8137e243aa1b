"""From a model file to a shared library for a phone. A library without a daemon; most modules import TVM.

`load` reads a file of any format (`SourceModel`: ONNX and Keras, PyTorch, TensorFlow Lite, Relax) and imports it into
TVM (`ImportedModel`). `compile` makes the library for a `Recipe` (target, precision, tuning records), `link` finds a
linker, `reference` knows what the outputs should be, and `build.build` does all of it for a `BuildRequest`. A `package`
is a compiled model with what checks it, in one file; `records` and `record_files` hold tuning records.

`inputs`, `model`, `package`, `records` and `record_files` import no TVM: clients use them, too. Nothing read
here is trusted: archives are bounded, TVM's JSON is read by lists of nodes (`nodes`), and a Python program runs only
where its user imports it (`relax_model.run_script`).
"""
