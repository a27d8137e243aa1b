"""A plain library, no daemon needed: read a model, choose target and precision, compile, package, check numbers."""
