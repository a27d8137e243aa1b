"""The figure of memory in use: what is held counts, what was freed does not."""

from farm.metrics.process import heap_bytes

LARGE = 64 << 20


def test_heap_in_use_follows_what_is_held():
    before = heap_bytes()
    held = bytearray(LARGE)
    assert heap_bytes() - before >= len(held)
    del held
    assert heap_bytes() - before < LARGE / 2
