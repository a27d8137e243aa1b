"""One harness per format: it gets any bytes, and either reads them or says in farm's own words that it cannot.

A target raises when the code under it does: anything but the errors that its contract names, a value that does not
survive being written and read again, or a reader that keeps more than it may. The same functions run under Hypothesis
(tests/unit/fuzz), under atheris when it is installed, and under a mutator of our own (`python -m tests.fuzz`).
"""

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from farm import config
from farm.adb import devices, host_protocol, tunnels
from farm.adb.lease_proxy import requests as filter_requests
from farm.bundle.closure import inspect
from farm.bundle.elf import parse_elf
from farm.bundle.folder import FolderFile
from farm.common.errors import FarmError, ModelError, PhoneError, ProtocolError, UserError
from farm.common.phone_text import parse_getprop
from farm.common.selector import Selector
from farm.common.verbs import Verb
from farm.compiler import records
from farm.compiler.labelled import read_labelled
from farm.compiler.model import TensorSpec
from farm.control import address, messages
from farm.control.audit import LONGEST, about_call
from farm.devices.health.probe.parse import parse_probe
from farm.devices.identity.identity import RawIdentity, identify
from farm.measure.quality import METRICS
from farm.simulation import adbd
from farm.simulation.sync_protocol import SyncDecoder
from farm.tuning import progress
from farm.tvm_server import wire
from farm.tvm_server.gate import messages as gate_messages
from farm.tvm_server.wire import TrackerCode
from tests.support.raw import encode_message
from tests.unit.bundle.elves import LINKER64, Elf

MAX_HELD_BYTES = 64 << 10  # of anything unfinished: readers with a smaller limit of their own are held to it below


@dataclass(frozen=True)
class Target:
    """Reads any bytes; `seeds` are good ones to begin from."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def pieces(data):
    """The bytes as a network might bring them: cut where the first byte says."""
    if not data:
        return []
    step = data[0] % 7 * 5 + 1
    rest = data[1:]
    return [rest[at : at + step] for at in range(0, len(rest), step)] if step > 1 else [rest]


def of_parser(make, most_bytes):
    """A parser of farm.tracker: events or one ProtocolError, for good."""

    def run(data):
        parser = make()
        try:
            for piece in pieces(data):
                parser.receive_data(piece)
                while parser.next_event() is not None:
                    pass
                if parser.held_bytes > most_bytes + len(piece):
                    raise AssertionError(f"{parser.held_bytes} bytes are held")
        except ProtocolError:
            failed = True
        else:
            failed = False
        if failed:
            with suppress(ProtocolError):
                parser.next_event()
                raise AssertionError("it went on after an error")

    return run


def frames(data):
    """Frames of a ZeroMQ message: the bytes cut at 0xFF."""
    return data.split(b"\xff")[:12]


ORDER = Verb("order", subject="device", order=("selector", "spec.kind"))


def control_request(data):
    """The job door and the CURVE door."""
    body = frames(data)
    try:
        request = messages.decode_request(body)
    except ProtocolError:
        messages.request_id(body)
        return
    again = messages.decode_request(messages.encode_request(request))
    if (again.kind, again.fields) != (request.kind, request.fields):
        raise AssertionError("it was read as something else")
    if len(about_call(ORDER, request.fields)) > LONGEST + len(" ......"):
        raise AssertionError("the audit log takes too much")


def control_reply(data):
    """What a client believes of whoever it dialled."""
    with suppress(ProtocolError):
        reply = messages.decode_reply(frames(data))
        if reply.error is not None and not isinstance(reply.error, FarmError):
            raise AssertionError("an error that is none of ours")


def gate_message(data):
    """Between `farm gate` and the daemon, from either side."""
    gate_messages.version_of(data)
    for side in (gate_messages.FROM_DAEMON, gate_messages.FROM_GATE):
        with suppress(ProtocolError):
            message = gate_messages.decode(data, side)
            if gate_messages.decode(gate_messages.encode(message), side) != message:
                raise AssertionError("it was read as something else")


def adb_host(data):
    """Requests of a leased adb's clients, and what the filter makes of them."""
    reader = host_protocol.BlockReader()
    with suppress(ProtocolError):
        for piece in pieces(data):
            reader.feed(piece)
            while (block := reader.next()) is not None:
                request = filter_requests.request_of(block)
                for selected in (False, True):
                    verdict = filter_requests.judge(request, "S1", selected=selected)
                    name = filter_requests.change_of(request, verdict.decision)
                    if not name.isascii() or len(name) > filter_requests.MAX_NAME:
                        raise AssertionError(f"{name!r} is no name for an audit log")


def adb_server(data):
    """What an adb server answers: status, blocks, shell packets, sync replies."""
    for reader in (
        host_protocol.StatusReader(),
        host_protocol.BlockReader(),
        host_protocol.ShellReader(),
        host_protocol.SyncReader(),
    ):
        with suppress(ProtocolError):
            for piece in pieces(data):
                reader.feed(piece)
                while reader.next() is not None:
                    pass


def adb_lists(data):
    """Lists of phones and tunnels, as text and as protobuf."""
    text = host_protocol.text_of(data)
    listed = devices.parse_device_list(text)
    tunnels.parse_forwards(text)
    tunnels.parse_reverses("S1", text)
    for form in devices.ListForm:
        with suppress(ProtocolError):
            shown = devices.keep_only(data, "S1", form)
            if form is devices.ListForm.TEXT:
                whose = {each.serial for each in devices.parse_device_list(host_protocol.text_of(shown))}
                if not whose <= {"S1"}:
                    raise AssertionError(f"phones of others are shown: {whose}")
    if any(not device.serial for device in listed):
        raise AssertionError("a phone without a serial number")


def adb_transport(data):
    """The phone's side of adb's transport, and the sync protocol over it (virtual phones)."""
    phone = adbd.DeviceConnection("device::features=shell_v2,cmd")
    with suppress(ProtocolError):
        for piece in pieces(data):
            for event in phone.receive(piece):
                if isinstance(event, adbd.StreamRequested):
                    phone.accept(event.stream)
                elif isinstance(event, adbd.DataReceived):
                    phone.acknowledge(event.stream)
                phone.take_output()
    decoder = SyncDecoder()
    with suppress(ProtocolError):
        for piece in pieces(data):
            for _ in decoder.feed(piece):
                pass


def elf(data):
    """A file that somebody adds to a bundle, and the closure of what it needs."""
    try:
        found = parse_elf(data)
    except UserError:
        found = None
    told = inspect([FolderFile("tvm_rpc", found), FolderFile("libtvm_runtime.so", found)])
    if found is not None and not all(each.file.isprintable() for each in told.refusals):
        raise AssertionError("a name that steers a terminal")


def phone_words(data):
    """What a phone says of itself: properties, identity, probes."""
    parse_getprop(data.decode(errors="replace"))
    with suppress(PhoneError):
        identify(RawIdentity.parse(data))
    with suppress(ProtocolError):
        parse_probe(data)


def config_file(data):
    """farm.toml, and the client's file and key."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "farm.toml")
        path.write_bytes(data)
        path.chmod(0o600)
        with suppress(UserError):
            config.load(path, environ={})
        with suppress(UserError):
            key, _ = address.read_key(path)
            if "secret_key" in repr(key):
                raise AssertionError("a secret in words")


def record_lines(data):
    """Tuning records: JSON lines, perhaps torn, and what commands compute of them."""
    workloads, _, rest = data.partition(b"\xff")
    names = (records.WORKLOADS, records.RECORDS, records.MEASURED_BY, records.TASKS)
    found = records.read(dict(zip(names, (workloads, *rest.split(b"\xff")), strict=False)))
    again = records.read({name: text.encode() for name, text in found.set.texts().items()})
    if again.damage or len(again.set.records) != len(found.set.records):
        raise AssertionError("what was kept cannot be read again")
    records.best(records.pruned(found.set))
    progress.replayed(found.set)


def labelled_inputs(data):
    """An .npz of labelled inputs, or its labels: what is read has an input for each label."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x.npy", _npy(np.ones((3, 2), np.float32)))
        archive.writestr("labels.npy", data)
    for npz in (data, packed.getvalue()):
        with suppress(ModelError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            found = read_labelled(npz, DIGITS, METRICS["top1"])
            assert sum(place.stop - place.start for place, _ in found.batches()) == len(found.labels)


def selector(data):
    """Words that people type, and a stock client's key."""
    text = data.decode(errors="replace")
    with suppress(UserError):
        parsed = Selector.parse(text)
        if Selector.parse(str(parsed)) != parsed:
            raise AssertionError("it was read as something else")
    wire.is_key(text)
    wire.is_match_key(text)


def _json(**fields):
    return json.dumps(fields).encode()


TRACKER = wire.encode_magic() + b"".join(
    encode_message(message)
    for message in (
        wire.TrackerRequest("android", "ann", 1),
        TrackerCode.SUMMARY,
        TrackerCode.GET_PENDING_MATCHKEYS,
        TrackerCode.PING,
    )
)
HOST = b"host::\0"
ASKED = _json(v=1, id="a", kind="job.submit", spec={"kind": "shell"}, device="pixel")


def _npy(array):
    packed = io.BytesIO()
    np.save(packed, array)
    return packed.getvalue()


def _npz():
    packed = io.BytesIO()
    np.savez(packed, x=np.ones((3, 2), np.float32), labels=np.arange(3))
    return packed.getvalue()


DIGITS = SimpleNamespace(name="net.onnx", inputs=(TensorSpec("x", (2, 2), np.dtype("float32")),))

TARGETS = {
    "labelled-inputs": Target(labelled_inputs, (_npz(), _npy(np.arange(3)))),
    "tracker": Target(of_parser(wire.TrackerParser, wire.MAX_TRACKER_MESSAGE_BYTES + 4), (b"\0" + TRACKER,)),
    "session-hello": Target(
        of_parser(wire.ClientHelloParser, wire.MAX_HELLO_BYTES + 4),
        (b"\0" + wire.encode_client_hello("client:android:0123456789abcdef"),),
    ),
    "session-answer": Target(
        of_parser(wire.ServerHelloParser, wire.MAX_HELLO_BYTES + 4),
        (
            b"\0"
            + wire.encode_server_hello(wire.ServerHello(wire.SessionCode.SUCCESS, "server:android")),
        ),
    ),
    "control-request": Target(control_request, (ASKED, ASKED + b"\xffraw", _json(v=1, id="a", kind="ping"))),
    "control-reply": Target(
        control_reply,
        (_json(id="a", ok={}), _json(id="a", more=True), _json(id="a", error={"code": "x", "fault": "user"})),
    ),
    "gate": Target(
        gate_message,
        tuple(
            gate_messages.encode(each)
            for each in (gate_messages.Notice(gate_messages.Signal.DAEMON_READY), gate_messages.PhoneActive(1.5))
        ),
    ),
    "adb-host": Target(
        adb_host,
        tuple(
            b"\0" + host_protocol.encode_request(request)
            for request in (
                "host:devices-l", "host:tport:serial:S1", "shell,v2,raw:id", "host:kill", "reverse:forward:tcp:1;tcp:2",
            )
        ),
    ),
    "adb-server": Target(adb_server, (b"\0OKAY", b"\0FAIL0004gone", b"\0\x01\x02\0\0\0hi", b"\0DATA\x02\0\0\0hi")),
    "adb-lists": Target(
        adb_lists,
        (
            b"S1\tdevice usb:1-4 product:p model:m device:d transport_id:3\nS2\toffline\n",
            b"S1 tcp:5000 tcp:6000\nUsbFfs tcp:1 tcp:2\n",
            b'device {\n  serial: "S1"\n}\n',
        ),
    ),
    "adb-transport": Target(
        adb_transport,
        (
            b"\0" + adbd.encode_header(adbd.Command.CNXN, 0x01000001, 1 << 20, HOST, checked=False) + HOST,
            b"\0STAT\x04\0\0\0/tmpSEND\x08\0\0\0/tmp,420DATA\x01\0\0\0xDONE\0\0\0\0",
        ),
    ),
    "elf": Target(elf, (Elf(interpreter=LINKER64, needed=("libtvm_ffi.so",)).to_bytes(), Elf().to_bytes())),
    "phone-words": Target(
        phone_words,
        (
            b"==farm:files\n==farm:cpuinfo\nprocessor\t: 0\n==farm:getprop\n[ro.product.model]: [x]\n",
            b"==farm:boot\nboot_id=b\n/proc/uptime=42.5 80.0\n==farm:battery\nlevel: 80\n==farm:end\n",
        ),
    ),
    "config": Target(
        config_file,
        (
            b'[tvm]\nport = 9190\n[control]\nlisten = "tcp://127.0.0.1:9192"\n[[adopt]]\nmatch = "soc=x"\n',
            "".join(f'{name}_key = "{name[2] * 40}"\n' for name in ("server", "public", "secret")).encode(),
        ),
    ),
    "records": Target(
        record_lines,
        (
            b'["1", "AAAA"]\n\xff[0, [[[], []], [0.5], {"kind": "llvm"}, []]]\n\xff\xff',
            b'["1", "AAAA"]\n\xff[0, [[[], []], [0.5], {"kind"',
            *(
                b'["1", "A"]\n\xff[0, [[[], []], [%s], {}, []]]\n\xff\xff' % seconds
                + b'{"workload": "1", "name": "n", "weight": %s}\n' % weight
                for seconds, weight in ((b"5", b"2"), (b"9" * 400, b"2"), (b"5", b"9" * 400), (b"1e999", b"2"))
            ),
        ),
    ),
    "selector": Target(selector, (b"soc=sm8550,pool=lab", b"android", b"server:android:0.5")),
}  # fmt: skip
