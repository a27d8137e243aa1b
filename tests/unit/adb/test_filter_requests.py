"""What a leased adb's clients ask: judged, and reduced to one phone."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.devices import ListForm, keep_only
from farm.adb.host_protocol import BlockReader
from farm.adb.lease_proxy import requests as r
from farm.adb.tunnels import TunnelKind
from farm.common.errors import ProtocolError

MINE, THEIRS = "SER 1:5555", "SER2"
FORWARD, REVERSE = TunnelKind.FORWARD, TunnelKind.REVERSE


def test_a_request_is_text_and_not_empty():
    assert r.request_of(b"shell,v2,raw:echo \xff") == "shell,v2,raw:echo \udcff"
    with pytest.raises(ProtocolError):
        r.request_of(b"")


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_a_request_or_protocol_error_nothing_else(pieces):
    reader = BlockReader()
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            reader.feed(piece)
            while (block := reader.next()) is not None:
                assert r.request_of(block)


WORDS = st.sampled_from([
    "host", "host-serial", "host-transport-id", "host-usb", ":", "transport", "tport", "-any", "serial", MINE, THEIRS,
    "forward", "killforward", "norebind", "tcp", "7", "5555", "99999", ";", "reverse", "shell", "reboot", "kill",
])  # fmt: skip


@given(st.one_of(st.text(), st.lists(WORDS, max_size=8).map("".join)), st.booleans())
def test_every_request_has_a_verdict_and_none_reaches_another_phone(request, selected):
    match r.judge(request, MINE, selected=selected).decision:
        case r.Ask(service=service):
            assert service.startswith((f"host-serial:{MINE}:", "host:version", "host:host-features", "host:server-"))
        case r.Serve(service=service):
            assert selected
            assert service == request
            assert not service.startswith("host")
        case r.Refuse(message=message):
            assert message


def decision(request, *, selected=False):
    return r.judge(request, MINE, selected=selected).decision


def is_refused(request, *, selected=False):
    return isinstance(decision(request, selected=selected), r.Refuse)


@pytest.mark.parametrize("prefix", ["host:", "host-usb:", "host-local:", f"host-serial:{MINE}:"])
def test_who_names_nobody_or_the_phone_means_it(prefix):
    for asked in ("features", "get-state", "get-serialno", "get-devpath", "wait-for-any-device", "wait-for-usb"):
        assert decision(prefix + asked) == r.Ask(f"host-serial:{MINE}:{asked}")


def test_switching_to_the_phone():
    for request in (f"host:transport:{MINE}", "host:transport-any", "host:transport-usb", "host:transport-local"):
        assert r.judge(request, MINE, selected=False) == r.JudgedRequest(r.Select(tell_id=False))
    for request in (f"host:tport:serial:{MINE}", "host:tport:any", "host:tport:usb", "host:tport:local"):
        assert r.judge(request, MINE, selected=False) == r.JudgedRequest(r.Select(tell_id=True))
    assert r.judge("host:transport-id:7", MINE, selected=False) == r.JudgedRequest(r.Select(), 7)
    asked = r.JudgedRequest(r.Ask(f"host-serial:{MINE}:get-state"), 7)
    assert r.judge("host-transport-id:7:get-state", MINE, selected=False) == asked


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        *((f"host:{asked}", r.Ask(f"host:{asked}")) for asked in ("version", "host-features", "server-status")),
        ("host:devices-l", r.Listing("host:devices-l")),
        (
            "host:track-devices-proto-binary",
            r.Listing("host:track-devices-proto-binary", ListForm.PROTO_BINARY, follow=True),
        ),
        ("host:forward:tcp:0;tcp:5", r.OpenTunnel(FORWARD, "tcp:0", "tcp:5", rebind=True)),
        *(
            (f"host:forward:tcp:0;{remote}:1", r.OpenTunnel(FORWARD, "tcp:0", f"{remote}:1", rebind=True))
            for remote in ("localabstract", "localreserved", "localfilesystem", "local", "dev", "jdwp")
        ),
        (
            "host:forward:norebind:tcp:9000;localabstract:a;b",
            r.OpenTunnel(FORWARD, "tcp:9000", "localabstract:a;b", rebind=False),
        ),
        ("host:killforward:tcp:9000", r.CloseTunnel(FORWARD, "tcp:9000")),
        ("host:killforward-all", r.CloseTunnel(FORWARD, None)),
        (f"host-serial:{MINE}:list-forward", r.ListForwards()),
    ],
)
def test_what_the_server_is_asked(request_, wanted):
    assert decision(request_) == wanted


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        ("tcp:0;tcp:5", r.OpenTunnel(REVERSE, "tcp:0", "tcp:5", rebind=True)),
        ("norebind:tcp:1;tcp:2", r.OpenTunnel(REVERSE, "tcp:1", "tcp:2", rebind=False)),
    ],
)
def test_reverses_are_opened(request_, wanted):
    assert decision(f"reverse:forward:{request_}", selected=True) == wanted


def test_reverses_are_closed():
    assert decision("reverse:killforward:tcp:1", selected=True) == r.CloseTunnel(REVERSE, "tcp:1")
    assert decision("reverse:killforward-all", selected=True) == r.CloseTunnel(REVERSE, None)


@pytest.mark.parametrize(
    "request_",
    [
        f"host:transport:{THEIRS}", f"host:tport:serial:{THEIRS}", f"host-serial:{THEIRS}:features",
        f"host-serial:{THEIRS}:forward:tcp:1;tcp:2", f"host-serial:{MINE}5:get-state", "host-serial:",
        "host:transport:",
    ],
)  # fmt: skip
def test_another_phone_is_not_there(request_):
    assert is_refused(request_)
    assert "not found" in decision(request_).message


@pytest.mark.parametrize(
    "request_",
    [
        "host:kill", "host:connect:1.2.3.4", "host:disconnect:", "host:disconnect:x", "host:pair:1:x", "host:attach",
        "host:emulator:5", "host:reconnect", "host:reconnect-offline", f"host-serial:{MINE}:reconnect", "host:detach",
        "host:mdns:services", "host-transport-id:x:features", "host:transport-id:-1", "host:tport:x", "host:",
        "hosts:version", "host:transportation", "host:killforwards", "host:wait-for-any-device;x", "",
        *("host:forward:" + bad for bad in (
            "tcp:80;tcp:1", "tcp:5555;tcp:1", "tcp:70000;tcp:1", "tcp:x;tcp:1", "localfilesystem:/x;tcp:1", "tcp:0", ""
        )),
    ],
)  # fmt: skip
def test_refused_of_the_server(request_):
    assert is_refused(request_)


@pytest.mark.parametrize("dialled", ["tcp:5000", "tcp:5000:localhost", "tcp:127.0.0.1:5000"])
def test_nobody_is_led_to_the_rpc_server_of_farm(dialled):
    for request_ in (
        dialled,
        f"host:forward:tcp:5000;{dialled}",
        f"host-serial:{MINE}:forward:norebind:tcp:0;{dialled}",
    ):
        refused = r.judge(request_, MINE, selected=True, server_port=5000).decision
        assert isinstance(refused, r.Refuse)
        assert "the phone's tcp:5000 is farm's own" in refused.message
        for port in (0, 5001):  # there is none, or another's
            assert not isinstance(r.judge(request_, MINE, selected=True, server_port=port).decision, r.Refuse)
    reverse = r.judge("reverse:forward:tcp:6000;tcp:5000", MINE, selected=True, server_port=5000).decision
    assert reverse == r.OpenTunnel(REVERSE, "tcp:6000", "tcp:5000", rebind=True)  # the host's port


@pytest.mark.parametrize(
    "service",
    [
        "reboot:", "reboot:bootloader", "root:", "unroot:", "remount:", "disable-verity:", "enable-verity:", "usb:",
        "tcpip:5555", "reconnect", "sideload:1", "sideload-host:1:2", "rescue-install:1:2", "rescue-getprop:x",
        "rescue-wipe:x:1", "restore:", "spin", "", ":", "☃", "SHELL:", "reverse:", "reverse:x", "shellx:",
        *("reverse:forward:" + bad for bad in (
            "tcp:1;tcp:0", "tcp:1;localfilesystem:/run/farm/adb.sock", "tcp:1;tcp:host:1", "tcp:1;", ";tcp:1"
        )),
    ],
)  # fmt: skip
def test_refused_of_the_phone(service):
    assert is_refused(service, selected=True)
    for way in ("host:forward:tcp:0;", "host:forward:norebind:tcp:9000;", f"host-serial:{MINE}:forward:tcp:0;"):
        assert is_refused(way + service)


@pytest.mark.parametrize(
    "service",
    [
        "host:kill", f"host:transport:{THEIRS}", "reverse:forward:tcp:1;tcp:5037", "shell:reboot", "shell,v2,raw:id",
        "exec:id", "sync:", "abb_exec:x", "tcp:", "jdwp", "acceptfd:3", " reboot:",
    ],
)  # fmt: skip
def test_a_forward_leads_to_a_socket_and_to_nothing_else(service):
    assert is_refused(f"host:forward:tcp:0;{service}")
    assert is_refused(f"reverse:forward:{service};tcp:7000", selected=True)


@pytest.mark.parametrize(
    "service",
    [
        "shell:", "shell,v2,TERM=xterm,raw:id", "exec:cat", "sync:", "tcp:5000", "localabstract:x", "jdwp:1",
        "abb_exec:x", "track-jdwp", "framebuffer:", "dev:/dev/x", "reverse:list-forward",
    ],
)  # fmt: skip
def test_served_on_the_phone_only_after_it_was_chosen(service):
    assert decision(service, selected=True) == r.Serve(service)
    assert is_refused(service)
    assert decision("host:version", selected=True) == r.Ask("host:version")


LONG = b"SER 1:5555             device product:p model:m device:d transport_id:3\n"
DENIED = b"SER2                   no permissions (user in plugdev group; your udev rules?); see [http://x] usb:1\n"


@pytest.mark.parametrize(
    ("mine", "theirs", "form"),
    [
        (b"SER 1:5555\tdevice\n", b"SER2\toffline\n", ListForm.TEXT),
        (LONG, DENIED, ListForm.TEXT),
        (b"\n\x0e\n\nSER 1:5555\x10\x08", b"\n\x0a\n\x04SER2\x10\x08P\x01", ListForm.PROTO_BINARY),
        (b'device {\n  serial: "SER 1:5555"\n}\n', b'device {\n  serial: "SER2"\n}\n', ListForm.PROTO_TEXT),
    ],
)
def test_lists_are_reduced_to_one_phone(mine, theirs, form):
    assert keep_only(mine + theirs, MINE, form) == mine
    assert keep_only(mine + theirs, THEIRS, form) == theirs
    assert keep_only(mine + theirs, "SER", form) == keep_only(b"", MINE, form) == b""


@given(st.binary(max_size=200), st.sampled_from(ListForm))
def test_a_list_or_protocol_error(block, form):
    with contextlib.suppress(ProtocolError):
        assert len(keep_only(block, MINE, form)) <= len(block)


@pytest.mark.parametrize("broken", [b"\n", b"\n\x7f", b"\x0b", b"\xff" * 11, b"\x0d\x00", b"\n\x03\n\x7f\x00"])
def test_broken_protocol_buffers(broken):
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
def test_the_audit_log_hears_of_changes_by_their_services_name_only(request_, name):
    assert r.change_of(request_, decision(request_, selected=True)) == name
