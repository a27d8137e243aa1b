"""What a leased adb's clients ask: read in every way bytes can come, judged, and reduced to one phone."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.devices import ListForm, keep_only
from farm.adb.host_protocol import BlockReader, encode_request
from farm.adb.lease_proxy import requests as r
from farm.adb.tunnels import TunnelKind
from farm.common.errors import ProtocolError

MINE, THEIRS = "SER 1:5555", "SER2"


def read_all(reader: BlockReader) -> list[str]:
    found = []
    while (block := reader.next()) is not None:
        found.append(r.request_of(block))
    return found


def test_whole_byte_by_byte_and_several_at_once() -> None:
    services = ["host:version", "host:tport:any", "shell,v2,raw:echo \udcff", "x" * 0xFFFF]
    data = b"".join(map(encode_request, services))
    whole = BlockReader()
    whole.feed(data + b"000")
    assert read_all(whole) == services
    assert (whole.rest(), whole.wants) == (b"000", 1)
    slow, found = BlockReader(), []
    for byte in data:
        assert slow.next() is None
        assert slow.wants > 0
        slow.feed(bytes([byte]))
        if slow.wants == 0:
            found += read_all(slow)
    assert found == services


def test_wants_never_swallows_what_follows() -> None:
    data, reader, at = encode_request("host:transport-any") + b"stream", BlockReader(), 0
    while reader.wants:
        wanted = reader.wants
        reader.feed(data[at : at + wanted])
        at += wanted
    assert read_all(reader) == ["host:transport-any"]
    assert data[at:] == b"stream"


@pytest.mark.parametrize("junk", [b"0000", b"GET ", b"+0a1", b" 12 ", b"\xff\xff\xff\xff"])
def test_junk(junk: bytes) -> None:
    reader = BlockReader()
    with pytest.raises(ProtocolError):  # noqa: PT012 (either call may see it)
        reader.feed(junk)
        read_all(reader)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_a_request_or_protocol_error_nothing_else(pieces: list[bytes]) -> None:
    reader = BlockReader()
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            reader.feed(piece)
            for request in read_all(reader):
                assert request


WORDS = st.sampled_from([
    "host", "host-serial", "host-transport-id", "host-usb", ":", "transport", "tport", "-any", "serial", MINE, THEIRS,
    "forward", "killforward", "norebind", "tcp", "7", "5555", "99999", ";", "reverse", "shell", "reboot", "kill",
])  # fmt: skip


@given(st.one_of(st.text(), st.lists(WORDS, max_size=8).map("".join)), st.booleans())
def test_every_request_has_a_verdict_and_none_reaches_another_phone(request: str, selected: bool) -> None:
    verdict = r.judge(request, MINE, selected=selected)
    match verdict.decision:
        case r.Ask(service=service):
            assert service.startswith((f"host-serial:{MINE}:", "host:version", "host:host-features", "host:server-"))
        case r.Serve(service=service):
            assert selected
            assert service == request
            assert not service.startswith("host")
        case r.Refuse(message=message):
            assert message
        case _:
            pass


def verdict(request: str, *, selected: bool = False) -> r.JudgedRequest:
    return r.judge(request, MINE, selected=selected)


@pytest.mark.parametrize("prefix", ["host:", "host-usb:", "host-local:", f"host-serial:{MINE}:"])
def test_who_names_nobody_or_the_phone_means_it(prefix: str) -> None:
    for asked in ("features", "get-state", "get-serialno", "get-devpath", "wait-for-any-device", "wait-for-usb"):
        assert verdict(prefix + asked).decision == r.Ask(f"host-serial:{MINE}:{asked}")


def test_what_the_server_itself_is_asked() -> None:
    for asked in ("host:version", "host:host-features", "host:server-status"):
        assert verdict(asked).decision == r.Ask(asked)
    assert verdict("host:devices-l").decision == r.Listing("host:devices-l")
    followed = verdict("host:track-devices-proto-binary").decision
    assert followed == r.Listing("host:track-devices-proto-binary", ListForm.PROTO_BINARY, follow=True)


def test_switching_to_the_phone() -> None:
    for request in (f"host:transport:{MINE}", "host:transport-any", "host:transport-usb", "host:transport-local"):
        assert verdict(request) == r.JudgedRequest(r.Select(tell_id=False))
    for request in (f"host:tport:serial:{MINE}", "host:tport:any", "host:tport:usb", "host:tport:local"):
        assert verdict(request) == r.JudgedRequest(r.Select(tell_id=True))
    assert verdict("host:transport-id:7") == r.JudgedRequest(r.Select(), 7)
    assert verdict("host-transport-id:7:get-state") == r.JudgedRequest(r.Ask(f"host-serial:{MINE}:get-state"), 7)


@pytest.mark.parametrize(
    "request_",
    [
        f"host:transport:{THEIRS}", f"host:tport:serial:{THEIRS}", f"host-serial:{THEIRS}:features",
        f"host-serial:{THEIRS}:forward:tcp:1;tcp:2", f"host-serial:{MINE}5:get-state", "host-serial:",
        "host:transport:",
    ],
)  # fmt: skip
def test_another_phone_is_not_there(request_: str) -> None:
    decision = verdict(request_).decision
    assert isinstance(decision, r.Refuse)
    assert "not found" in decision.message


@pytest.mark.parametrize(
    "request_",
    [
        "host:kill", "host:connect:1.2.3.4", "host:disconnect:", "host:disconnect:x", "host:pair:1:x",
        "host:emulator:5",
        "host:reconnect", "host:reconnect-offline", f"host-serial:{MINE}:reconnect", "host:mdns:services",
        "host:attach",
        "host:detach", "host-transport-id:x:features", "host:transport-id:-1", "host:tport:x", "host:", "hosts:version",
        "host:transportation", "host:killforwards", "host:wait-for-any-device;x", "",
    ],
)  # fmt: skip
def test_refused_of_the_server(request_: str) -> None:
    assert isinstance(verdict(request_).decision, r.Refuse)


@pytest.mark.parametrize(
    "service",
    [
        "reboot:", "reboot:bootloader", "root:", "unroot:", "remount:", "disable-verity:", "enable-verity:",
        "tcpip:5555",
        "usb:", "reconnect", "sideload:1", "sideload-host:1:2", "rescue-install:1:2", "rescue-getprop:x",
        "rescue-wipe:x:1", "restore:", "spin", "", ":", "☃",
        "SHELL:", "reverse:", "reverse:x", "shellx:",
    ],
)  # fmt: skip
def test_refused_of_the_phone(service: str) -> None:
    assert isinstance(verdict(service, selected=True).decision, r.Refuse)
    for way in ("host:forward:tcp:0;", "host:forward:norebind:tcp:9000;", f"host-serial:{MINE}:forward:tcp:0;"):
        assert isinstance(verdict(way + service).decision, r.Refuse)


@pytest.mark.parametrize(
    "service",
    [
        "host:kill", f"host:transport:{THEIRS}", "reverse:forward:tcp:1;tcp:5037", "shell:reboot", "shell,v2,raw:id",
        "exec:id", "sync:", "abb_exec:x", "tcp:", "jdwp", "acceptfd:3", " reboot:",
    ],
)  # fmt: skip
def test_a_forward_leads_to_a_socket_and_to_nothing_else(service: str) -> None:
    assert isinstance(verdict(f"host:forward:tcp:0;{service}").decision, r.Refuse)
    assert isinstance(verdict(f"reverse:forward:{service};tcp:7000", selected=True).decision, r.Refuse)


@pytest.mark.parametrize(
    "remote",
    ["tcp:1", "localabstract:a", "localreserved:a", "localfilesystem:/a", "local:a", "dev:/dev/a", "jdwp:1"],
)
def test_every_socket_of_the_phone_may_be_forwarded(remote: str) -> None:
    assert verdict(f"host:forward:tcp:0;{remote}").decision == r.OpenTunnel(
        TunnelKind.FORWARD, "tcp:0", remote, rebind=True
    )


def test_served_on_the_phone_only_after_it_was_chosen() -> None:
    services = [
        "shell:", "shell,v2,TERM=xterm,raw:id", "exec:cat", "sync:", "tcp:5000", "localabstract:x", "jdwp:1",
        "abb_exec:x",
        "track-jdwp", "framebuffer:", "dev:/dev/x", "reverse:list-forward",
    ]  # fmt: skip
    for service in services:
        assert verdict(service, selected=True).decision == r.Serve(service)
        assert isinstance(verdict(service).decision, r.Refuse)
    assert verdict("host:version", selected=True).decision == r.Ask("host:version")


def test_forwards() -> None:
    assert verdict("host:forward:tcp:0;tcp:5").decision == r.OpenTunnel(
        TunnelKind.FORWARD, "tcp:0", "tcp:5", rebind=True
    )
    kept = verdict("host:forward:norebind:tcp:9000;localabstract:a;b").decision
    assert kept == r.OpenTunnel(TunnelKind.FORWARD, "tcp:9000", "localabstract:a;b", rebind=False)
    assert verdict("host:killforward:tcp:9000").decision == r.CloseTunnel(TunnelKind.FORWARD, "tcp:9000")
    assert verdict("host:killforward-all").decision == r.CloseTunnel(TunnelKind.FORWARD, None)
    assert verdict(f"host-serial:{MINE}:list-forward").decision == r.ListForwards()
    for bad in (
        "tcp:80;tcp:1",
        "tcp:5555;tcp:1",
        "tcp:70000;tcp:1",
        "tcp:x;tcp:1",
        "localfilesystem:/x;tcp:1",
        "tcp:0",
        "",
    ):
        assert isinstance(verdict(f"host:forward:{bad}").decision, r.Refuse), bad


def test_reverses() -> None:
    def asked(request: str) -> r.Decision:
        return verdict(request, selected=True).decision

    assert asked("reverse:forward:tcp:0;tcp:5") == r.OpenTunnel(TunnelKind.REVERSE, "tcp:0", "tcp:5", rebind=True)
    assert asked("reverse:forward:norebind:tcp:1;tcp:2") == r.OpenTunnel(
        TunnelKind.REVERSE, "tcp:1", "tcp:2", rebind=False
    )
    assert asked("reverse:killforward:tcp:1") == r.CloseTunnel(TunnelKind.REVERSE, "tcp:1")
    assert asked("reverse:killforward-all") == r.CloseTunnel(TunnelKind.REVERSE, None)
    for bad in ("tcp:1;tcp:0", "tcp:1;localfilesystem:/run/farm/adb.sock", "tcp:1;tcp:host:1", "tcp:1;", ";tcp:1"):
        assert isinstance(asked(f"reverse:forward:{bad}"), r.Refuse), bad


SHORT = b"SER 1:5555\tdevice\nSER2\toffline\n"
LONG = (
    b"SER 1:5555             device product:p model:m device:d transport_id:3\n"
    b"SER2                   no permissions (user in plugdev group; are your udev rules wrong?); see [http://x] usb:1\n"
)
BINARY = b"\n\x0e\n\nSER 1:5555\x10\x08\n\x0a\n\x04SER2\x10\x08P\x01"
TEXT = b'device {\n  serial: "SER 1:5555"\n  state: DEVICE\n}\ndevice {\n  serial: "SER2"\n  state: OFFLINE\n}\n'


def test_lists_are_reduced_to_one_phone() -> None:
    assert keep_only(SHORT, MINE, ListForm.TEXT) == b"SER 1:5555\tdevice\n"
    assert keep_only(LONG, MINE, ListForm.TEXT) == LONG.splitlines(keepends=True)[0]
    assert keep_only(LONG, THEIRS, ListForm.TEXT) == LONG.splitlines(keepends=True)[1]
    assert keep_only(BINARY, MINE, ListForm.PROTO_BINARY) == BINARY[:16]
    assert keep_only(BINARY, THEIRS, ListForm.PROTO_BINARY) == BINARY[16:]
    assert keep_only(TEXT, MINE, ListForm.PROTO_TEXT) == b'device {\n  serial: "SER 1:5555"\n  state: DEVICE\n}\n'
    for form, block in ((ListForm.TEXT, SHORT), (ListForm.PROTO_BINARY, BINARY), (ListForm.PROTO_TEXT, TEXT)):
        assert keep_only(block, "SER", form) == b""
        assert keep_only(b"", MINE, form) == b""


@given(st.binary(max_size=200), st.sampled_from(ListForm))
def test_a_list_or_protocol_error(block: bytes, form: ListForm) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(keep_only(block, MINE, form)) <= len(block)


@pytest.mark.parametrize("broken", [b"\n", b"\n\x7f", b"\x0b", b"\xff" * 11, b"\x0d\x00", b"\n\x03\n\x7f\x00"])
def test_broken_protocol_buffers(broken: bytes) -> None:
    with pytest.raises(ProtocolError):
        keep_only(broken, MINE, ListForm.PROTO_BINARY)


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        ("host:version", ""),
        ("host:devices", ""),
        ("host:transport-any", ""),
        ("shell,v2,raw:cat /sdcard/secret", "shell"),
        ("sync:", "sync"),
        ("host:forward:tcp:1;tcp:2", "forward"),
        ("reverse:forward:tcp:1;tcp:2", "reverse"),
        ("host:kill", "kill"),
        ("reboot:bootloader", "reboot"),
        ("\x1b[2Jx", "unknown"),
        ("a" * 4000, "a" * 32),
    ],
)
def test_the_audit_log_hears_of_changes_by_their_services_name_only(request_: str, name: str) -> None:
    assert r.change_of(request_, r.judge(request_, MINE, selected=True).decision) == name
