"""Floor 6. Runs under the zygote and may import TVM."""
