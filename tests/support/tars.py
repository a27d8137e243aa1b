"""Archives that nobody means well with."""

import tarfile


def sparse(name, claimed):
    """A GNU sparse member: 512 bytes that claim to be gigabytes."""
    header = bytearray(tarfile.TarInfo(name).tobuf(format=tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (claimed, 0)
    header[483:495] = b"%011o\0" % claimed
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)
