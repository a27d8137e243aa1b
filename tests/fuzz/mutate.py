"""Random changes of good bytes: what a fuzzer without instrumentation can do."""

TOKENS = (b"\0", b"\xff", b"\xff\xff\xff\x7f", b"\n", b"{", b"}", b"[", b'"', b"\\u", b"\\ud800", b":", b";", b"=",
          b"1e999", b"-1", b"9" * 30, b"../", b"\x1b[2J", b"$(id)", b"NaN", b"[[[[[[[[")  # fmt: skip
MAX_BYTES = 4096


def mutated(data, random, others=(b"",)):
    """`data` with a few changes: bits, bytes, cuts, repetitions, words that parsers stumble over, parts of others."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 6)):
        at = random.randint(0, len(changed))
        match random.randrange(7):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << random.randrange(8)
            case 1:
                changed[at:at] = random.randbytes(random.randint(1, 8))
            case 2:
                del changed[at : at + random.randint(1, 16)]
            case 3:
                changed[at:at] = random.choice(TOKENS)
            case 4:
                changed[at:at] = changed[at : at + random.randint(1, 32)] * random.randint(1, 8)
            case 5:
                other = random.choice(others)
                changed[at:] = other[random.randint(0, len(other)) :]
            case 6:
                changed = changed[:at]
    return bytes(changed[:MAX_BYTES])
