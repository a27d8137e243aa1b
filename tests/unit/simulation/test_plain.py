"""A phone without namespaces: its folder's name must never be seen, however the bytes arrive."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.simulation.plain import PathFilter, PlainPhone, rewrite_paths

HOST = "/tmp/lab/one"
PHONE = PlainPhone(Path(HOST))
MACHINE = PHONE.machine({"HOSTNAME": "localhost", "PATH": "/system/bin"})

SEEN = [
    ("", ""),
    (f"{HOST}/root/data/local/tmp/a\n", "/data/local/tmp/a\n"),
    (f"{HOST}/root\n", "/\n"),
    (f"{HOST}/root", "/"),
    (f"{HOST}/root/", "/"),
    (f"cannot open {HOST}/root: x", "cannot open /: x"),
    (f"PATH={HOST}/root/system/bin:/usr/bin", "PATH=/system/bin:/usr/bin"),
    (f"{HOST}/data/local/tmp\n", "/data/local/tmp\n"),  # what readlink -f and pwd -P print
    (f"{HOST}/data/media/0/x", "/data/media/0/x"),
    (f"{HOST}/proc/boot_id", "/proc/sys/kernel/random/boot_id"),
    (f"{HOST}/sys/class/thermal", "/sys/class/thermal"),
    (f"{HOST}/rootless {HOST}/root.old {HOST}/root-x", f"{HOST}/rootless {HOST}/root.old {HOST}/root-x"),
    (f"{HOST}/lab.log {HOST}", f"{HOST}/lab.log {HOST}"),
    ("/tmp/lab/on", "/tmp/lab/on"),
    ("/tmp/lab/o/tmp/lab/one/root/data", "/tmp/lab/o/data"),
    ("//tmp/lab/one/root//data", "///data"),
]


def new_filter():
    made = MACHINE.new_filter()
    assert isinstance(made, PathFilter)
    return made


@pytest.mark.parametrize(("said", "seen"), SEEN)
def test_the_hosts_names_are_not_seen_wherever_the_bytes_are_cut(said, seen):
    data, wanted = said.encode(), seen.encode()
    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            one = new_filter()
            parts = (data[:first], data[first:second], data[second:])
            assert b"".join(map(one.feed, parts)) + one.flush() == wanted
            assert not one.pending
    one = new_filter()
    assert b"".join(one.feed(data[i : i + 1]) for i in range(len(data))) + one.flush() == wanted


WORDS = st.sampled_from(
    [b"/", b"/tmp", b"/lab", b"/one", b"/root", b"/data", b"r", b"\0", b"\xff", b" ", HOST.encode()]
)


@given(st.lists(st.one_of(WORDS, st.binary(max_size=3))), st.data())
def test_pieces_say_what_the_whole_says(words, data):
    whole = b"".join(words)
    one = new_filter()
    wanted = one.feed(whole) + one.flush()
    said = b""
    while whole:
        count = data.draw(st.integers(1, len(whole)))
        said += one.feed(whole[:count])
        whole = whole[count:]
    assert said + one.flush() == wanted


def test_only_what_may_become_a_name_is_kept():
    one = new_filter()
    assert one.feed(b"working on it / ") == b"working on it / "
    assert one.feed(b"see /tmp/l") == b"see "
    assert one.pending
    assert one.feed(b"s") == b"/tmp/ls"
    assert not one.pending


@pytest.mark.parametrize("path", ["/data/local/tmp/a b", "/proc/cpuinfo", "/sdcard", "/dev/__properties__/all"])
def test_a_command_and_its_answer_are_inverse(path):
    one = new_filter()
    command = f"echo '{path}'"
    assert one.feed(rewrite_paths(command, str(PHONE.root)).encode()) + one.flush() == command.encode()


def test_a_shell_starts_in_the_phones_root():
    assert MACHINE.shell_argv("pwd") == ["/bin/sh", "-c", f"cd {HOST}/root; pwd"]
    assert MACHINE.shell_argv("") == ["/bin/sh", "-c", f"cd {HOST}/root; exec /bin/sh -"]
    assert MACHINE.environment["HOSTNAME"] == "localhost"
    assert MACHINE.environment["PATH"].split(":")[0] == f"{HOST}/root/system/bin"
