"""Verbs that another host of the lab answers: roles and names travel, errors are those of that host, away is said."""

import asyncio
from types import SimpleNamespace

import pytest

from farm.common.errors import Code, FarmError, HostUnreachableError, NotAllowedError, UserError
from farm.common.frames import frame
from farm.common.verbs import Verb
from farm.control.artifacts import ArtifactFolder
from farm.control.callers import Caller, Role
from farm.control.router import Answer
from farm.control.server import ControlServer
from farm.head.host_rules import HostState
from farm.lab.leases import CarriedLeases
from farm.lab.verbs import HostForwarder
from farm.leasing.lab_view import HostView, LabPicture, RemotePhone
from farm.model.device import DeviceView, Life
from tests.support.errors import raises_code
from tests.support.linked_hosts import linked_hosts
from tests.support.verbs import every_verb

ANN = Caller("ann", Role.USER, "uid 1000 pid 42")
ROOT = Caller("root", Role.OPERATOR, "uid 0 pid 1")


class Hosts:
    """Two control servers, each with a phone; what was asked where is kept."""

    def __init__(self, folder, links):
        self.links = links
        self.asked = []
        self.leases = []
        self.states = {"lab1": HostState.OK, "lab2": HostState.OK}
        self.unreached = None  # why lab1 does not reach lab2
        self.phones = {"lab1": "one", "lab2": "two"}
        self.servers = {name: self._server(folder, name) for name in self.phones}

    def _server(self, folder, host):
        artifacts = ArtifactFolder(folder / f"artifacts-{host}")
        server = ControlServer(folder / f"{host}.sock", artifacts=artifacts)

        async def show(call):
            self.asked.append((host, call.caller.user, call.caller.role, call.caller.origin))
            if call.fields.get("fails"):
                raise UserError("that does not work", Code.DEVICE_HELD, hint="wait")
            if call.fields.get("waits"):
                await call.progress(step=1)
                await asyncio.Event().wait()
            of_lease = {"lease": "l-1", "user": "ann"} if call.request.kind == "lease.show" else {}
            return Answer({"at": host, **of_lease}, (b"raw",))

        for kind in ("device.show", "lease.show", "lease.release"):
            server.register(Verb(kind, Role.USER, subject=kind.partition(".")[0]), show)
        for kind in ("device.reboot", "host.drain"):
            server.register(Verb(kind, Role.OPERATOR, subject=kind.partition(".")[0]), show)
        view = SimpleNamespace(own=host, look=lambda: self._picture(host), still_unreached=self._tried)
        link = self.links.add(host)
        leases = CarriedLeases(link, None, lambda user: None, lambda: (host, 1), folder / f"{host}.json")
        self.leases.append(leases)
        HostForwarder(view, link, server, lambda word: word == self.phones[host], leases)
        return server

    async def _tried(self, host):
        return self.unreached if self.phones[host] == "two" else ""

    async def _picture(self, host):
        ((other, phone),) = [each for each in self.phones.items() if each[0] != host]
        return LabPicture(
            tuple(
                HostView(name, None, 1, state=state, silent_s=1.0, unreached=self.unreached)
                for name, state in self.states.items()
            ),
            phones=(RemotePhone(other, DeviceView(phone, f"serial-{phone}", Life.READY), ""),),
            leases=(SimpleNamespace(host=other, id=f"l-{phone}", job=f"j-{phone}"),),
        )

    async def ask(self, kind="device.show", caller=ANN, **fields):
        return await self.servers["lab1"].ask(caller, kind, fields)


@pytest.fixture
async def hosts(tmp_path):
    async with linked_hosts(tmp_path) as links:
        hosts = Hosts(tmp_path, links)
        yield hosts
        for leases in hosts.leases:
            await leases.close()


async def test_a_phone_is_asked_about_where_it_is(hosts):
    for word, host in (("one", "lab1"), ("two", "lab2"), ("serial-two", "lab2"), ("nobody", "lab1")):
        answer = await hosts.ask(device=word)
        assert (answer.fields, answer.frames) == ({"at": host}, (b"raw",))
        if word == "two":  # a field that an older host does not send is unknown
            assert (str(answer.fields["soc"]), bool(answer.fields["soc"])) == ("unknown", False)
    assert hosts.asked[1] == ("lab2", "ann", Role.USER, "uid 1000 pid 42 at host lab1")


@pytest.mark.parametrize("name", ["two", "l-two", "j-two", "j-t"])
async def test_a_lease_ends_where_it_is_held_and_is_used_here(hosts, name):
    assert (await hosts.ask("lease.release", lease=name)).fields == {"at": "lab2"}
    shown = (await hosts.ask("lease.show", lease=name)).fields
    assert (shown["at"], shown["tvm_host"]) == ("lab2", "lab1")
    assert (await hosts.ask("lease.show", lease="l-one")).fields == {"at": "lab1", "lease": "l-1", "user": "ann"}


async def test_both_hosts_check_the_role(hosts):
    with pytest.raises(NotAllowedError):
        await hosts.ask("device.reboot", device="two")
    assert hosts.asked == []
    assert (await hosts.ask("device.reboot", ROOT, device="two")).fields == {"at": "lab2"}


async def test_an_error_is_that_of_the_other_host(hosts):
    with raises_code(Code.DEVICE_HELD, match="that does not work") as raised:
        await hosts.ask(device="two", fails=True)
    assert raised.value.hint == "wait"


async def test_a_host_that_is_not_reached_is_not_asked(hosts):
    hosts.unreached = "host lab2 cannot be reached: no route"
    with pytest.raises(HostUnreachableError, match="no route"):
        await hosts.ask(device="two")
    assert hosts.asked == []


async def test_a_host_that_is_away_is_named(hosts):
    hosts.states["lab2"] = HostState.LOST
    with pytest.raises(HostUnreachableError, match="host lab2, which has two, is lost"):
        await hosts.ask(device="two")
    with pytest.raises(UserError, match="there is no host 'LAB2'") as raised:
        await hosts.ask("host.drain", ROOT, host="LAB2")
    assert raised.value.hint == "did you mean lab2?"


async def test_a_connection_that_is_lost_before_the_answer_is_said(hosts):
    steps = asyncio.Queue()

    async def progress(**fields):
        steps.put_nowait(fields)

    waiting = asyncio.create_task(
        hosts.servers["lab1"].ask(ANN, "device.show", {"device": "two", "waits": True}, progress=progress)
    )
    assert await steps.get() == {"step": 1}
    await hosts.links.links["lab2"].stop()
    with pytest.raises(FarmError, match=r"connection to host lab2 was lost before it had answered device\.show"):
        await waiting


@pytest.mark.parametrize("reply", [{"ok": "done"}, {"more": None}, {}, {"error": "no"}, {"error": {"fault": []}}])
async def test_a_reply_that_is_none_is_an_error_of_that_host(hosts, reply):
    async def other(call):
        await call.accept()
        reader, writer = await call.streams()
        await reader.read(1)
        writer.write(frame(reply))

    hosts.links.links["lab2"]._services["verb"] = other
    with pytest.raises(FarmError, match=r"connection to host lab2 was lost|the peer reported an error in a form"):
        await hosts.ask(device="two")


async def test_a_request_is_sent_on_once(hosts):
    """Each host takes the other one for that of the phone: the second one answers."""

    async def picture(host):
        (other,) = hosts.phones.keys() - {host}
        return LabPicture(phones=(RemotePhone(other, DeviceView("moved", "serial", Life.READY), ""),))

    hosts._picture = picture
    assert (await hosts.ask(device="moved")).fields == {"at": "lab2"}


@pytest.mark.parametrize(
    "sent", [b"", b'{"kind": ', b"garbage\n", b"{}\n", b'{"kind": "device.show", "fields": [1]}\n']
)
async def test_what_is_no_request_of_another_host_is_no_error_of_this_one(hosts, caplog, sent):
    asking = {"user": "ann", "role": "user", "origin": "uid 1000"}
    connection = await hosts.links.links["lab1"].dial("lab2", "verb", asking)
    reader, writer = await connection.streams()
    writer.write(sent)
    writer.write_eof()
    assert await reader.read() == b""
    await connection.close()
    await hosts.links.links["lab2"].stop()
    assert (hosts.asked, [each for each in caplog.records if each.levelname == "ERROR"]) == ([], [])


@pytest.mark.parametrize(
    ("kind", "fields", "subject"),
    [
        ("device.show", {"device": "a"}, "a"),
        ("explain", {"what": "device", "name": "a"}, "a"),
        ("explain", {"what": "key", "name": "a"}, ""),
        ("device.add", {"device": "a"}, ""),
        ("host.drain", {"host": "lab2"}, "lab2"),
        ("host.drain", {}, ""),
        ("device.show", {"device": 3}, ""),
    ],
)
def test_what_a_request_is_about(tmp_path, kind, fields, subject):
    assert every_verb(tmp_path)[kind].host_subject(fields) == subject
