"""Floor 2-3. ELF closure, content-addressed runtime bundles, golden kernels."""
