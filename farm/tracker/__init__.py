"""Floor 5. The TVM door: RPC tracker and gate."""
