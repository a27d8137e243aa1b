"""People elsewhere: who gets in through the CURVE door, what they may do there, and how they are put out."""

import asyncio
import contextlib
import errno
import logging
import os
import stat
from contextlib import asynccontextmanager

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from farm.cli.auth import key_file
from farm.client.connection import DaemonConnection
from farm.common.errors import DaemonUnreachableError, FarmError, NotAllowedError, UserError
from farm.control import listeners, router
from farm.control.address import ClientKey, Remote, find, read_key
from farm.control.artifacts import ArtifactFolder
from farm.control.audit import AuditTrail
from farm.control.callers import FREE_TRIES, Accounts, Caller, Role
from farm.control.client import ControlClient
from farm.control.listeners import ControlSocketError, CurveListener, server_keys
from farm.control.server import REVOKED_LINGER_S, ControlServer
from farm.control.verbs.auth import AuthVerbs
from farm.store.store import Store
from tests.integration.control.served import ServedControl
from tests.support.waiting import HANG_S, until

HERE = Caller("root", Role.OPERATOR, "test")


class Lab(ServedControl):
    """With the door for people elsewhere, and a store."""

    def __init__(self, folder):
        self.store = Store.open(folder / "farm.db")
        self.accounts = Accounts(self.store.accounts)
        self.audit = AuditTrail(self.store.audit)
        self.entrance = CurveListener("tcp://127.0.0.1:0", self.accounts, folder / "keys" / "server.key")
        super().__init__(folder, audit=self.audit, accounts=self.accounts, remote=self.entrance)
        AuthVerbs(self.accounts, self.store.audit, self.entrance).register(self.server)

    async def new(self, name, role="user"):
        """An account, and where its owner finds the farm."""
        answer = await self.server.ask(HERE, "auth.new", {"name": name, "role": role})
        fields = answer.fields
        return self.at(ClientKey(name, fields["server_key"], fields["public_key"], fields["secret_key"]))

    def at(self, key):
        return Remote("127.0.0.1", self.entrance.port, key)

    def stranger(self):
        public, secret = (half.decode() for half in zmq.curve_keypair())
        return self.at(ClientKey("", self.entrance.server_key, public, secret))


@pytest.fixture
def short_waits(monkeypatch):
    """Of a connection whose handshake was lost, and of one that tries wrong keys."""
    monkeypatch.setattr(router, "HANDSHAKE_MS", 1000)
    monkeypatch.setattr(listeners, "MAX_WAIT_S", 0.3)


@pytest.fixture
async def lab(tmp_path):
    lab = Lab(tmp_path)
    await lab.server.start()
    yield lab
    await lab.server.stop()
    await lab.audit.close()
    lab.store.close()


async def ask(where, kind, **fields):
    def run():
        with ControlClient(where) as client:
            return client.call(kind, **fields)

    return await asyncio.to_thread(run)


@asynccontextmanager
async def links(where):
    opened = DaemonConnection(where, restart_s=0.0)
    try:
        yield opened
    finally:
        opened.close()


async def ask_linked(where, kind):
    async with links(where) as opened:
        return await opened.call(kind)


async def ends(link):
    while not await link.is_stale():  # noqa: ASYNC110 (tests observe)
        await asyncio.sleep(0.01)


async def test_a_key_admits_and_names_its_user(lab):
    ann = await lab.new("ann")
    assert await ask(ann, "ping") == {"user": "ann", "role": "user"}
    await until(lambda: lab.store.accounts.get("ann").used_at is not None)  # nobody waits for this write


async def test_streams_and_artifacts_go_through_it(lab):
    ann = await lab.new("ann")
    data = bytes(range(256)) * 8192  # 2 MiB: three chunks

    def run():
        with ControlClient(ann) as client:
            return list(client.stream("count")), client.get_artifact(client.put_artifact(data))

    told, got = await asyncio.to_thread(run)
    assert told == [{"number": 0}, {"number": 1}, {"number": 2}, {"counted": 3}]
    assert got == data
    async with links(ann) as opened:
        assert (await opened.call("ping"))["user"] == "ann"


async def test_a_role_may_what_it_may_and_refusals_are_written_down_with_the_key(lab):
    assert (await ask(await lab.new("op", "operator"), "change", device="pixel"))["user"] == "op"
    with pytest.raises(NotAllowedError, match="change needs the role operator; ann is user"):
        await ask(await lab.new("ann"), "change", device="pixel")
    rows = [(row.user, row.origin, row.subject, row.outcome) for row in lab.store.audit.page(kind="change")]
    assert rows == [
        ("ann", "key ann from 127.0.0.1", "pixel", "not_allowed"), ("op", "key op from 127.0.0.1", "pixel", "ok"),
    ]  # fmt: skip


@pytest.mark.parametrize("client", ["blocking", "asynchronous"])
async def test_an_unknown_key_is_refused_with_a_message(lab, client, caplog):
    asked, places = {"blocking": ask, "asynchronous": ask_linked}[client], []
    lab.entrance.on_wrong_key = places.append
    with caplog.at_level(logging.WARNING), pytest.raises(NotAllowedError, match="does not take this key"):
        await asked(lab.stranger(), "ping")
    assert places == ["127.0.0.1"]
    assert "a wrong key from 127.0.0.1" in caplog.text
    assert lab.accounts.keys.wrong == 1


async def test_wrong_keys_are_logged_once_counted_and_delayed(short_waits, lab, caplog):
    tries = FREE_TRIES + 1
    with caplog.at_level(logging.WARNING):
        for _ in range(tries):
            with pytest.raises(NotAllowedError):
                await ask(lab.stranger(), "ping")
    assert caplog.text.count("a wrong key from") == 1
    assert lab.accounts.keys.wrong == tries
    ann = await lab.new("ann")
    assert (await ask(ann, "ping"))["user"] == "ann"  # whoever has a right key waits for nobody's mistakes


async def test_a_client_without_curve_is_refused(lab):
    """The server may hang up before the client has read that it wants CURVE: libzmq then gives no reason."""
    refused = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

    def run():
        with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
            plain.linger = 0
            with plain.get_monitor_socket(refused | zmq.EVENT_HANDSHAKE_SUCCEEDED) as told:
                plain.connect(lab.entrance.endpoint)
                plain.send_multipart([b'{"v":1,"id":"x","kind":"ping"}'])
                assert told.poll(HANG_S * 1000)
                return recv_monitor_message(told)["event"]

    assert await asyncio.to_thread(run) & refused


async def test_a_daemon_with_another_key_is_not_believed(lab):
    ann = await lab.new("ann")
    other = zmq.curve_keypair()[0].decode()
    fooled = lab.at(ClientKey("ann", other, ann.key.public_key, ann.key.secret_key))
    with pytest.raises((DaemonUnreachableError, NotAllowedError)):
        await ask(fooled, "ping")


@pytest.mark.parametrize("client", ["blocking", "asynchronous"])
async def test_a_revoked_key_ends_what_it_has_under_way_and_opens_no_more(lab, client):
    ann, bob = await lab.new("ann"), await lab.new("bob")

    asked = {"blocking": ask, "asynchronous": ask_linked}[client]
    waiting = asyncio.create_task(asked(ann, "never"))
    async with links(ann) as idle, links(bob) as others:
        await idle.call("ping")
        await others.call("ping")
        await asyncio.wait_for(lab.began.wait(), HANG_S)
        (link,) = idle._open
        await lab.server.ask(HERE, "auth.revoke", {"name": "ann"})
        with pytest.raises(NotAllowedError, match="was revoked"):
            await waiting
        assert lab.cancelled.is_set()
        await asyncio.wait_for(ends(link), HANG_S)  # the connection that did nothing is cut
        with pytest.raises(NotAllowedError, match="does not take this key"):
            await idle.call("ping")
        assert (await others.call("ping"))["user"] == "bob"
        (link,) = others._open
        assert not await link.is_stale()


async def test_an_account_made_anew_does_not_revive_the_old_key(lab):
    old = await lab.new("ann")
    await lab.server.ask(HERE, "auth.revoke", {"name": "ann"})
    new = await lab.new("ann", "viewer")
    assert (await ask(new, "ping"))["role"] == "viewer"
    with pytest.raises(NotAllowedError):
        await ask(old, "ping")


async def test_a_new_key_is_not_cut_with_the_old_one(lab, monkeypatch):
    cuts, loop = [], asyncio.get_running_loop()
    call_later = loop.call_later

    def later(delay_s, *cut, **options):
        return cuts.append(cut) if delay_s == REVOKED_LINGER_S else call_later(delay_s, *cut, **options)

    monkeypatch.setattr(loop, "call_later", later)
    async with links(await lab.new("ann")) as old:
        await old.call("ping")
        (gone,) = old._open
        await lab.server.ask(HERE, "auth.revoke", {"name": "ann"})
        async with links(await lab.new("ann")) as new:
            await new.call("ping")
            (link,) = new._open
            ((cut, leaving),) = cuts
            assert cut(leaving) == 1
            await asyncio.wait_for(ends(gone), HANG_S)
            assert (await new.call("ping"))["user"] == "ann"
            assert [link] == list(new._open)
            assert not await link.is_stale()


async def test_a_key_file_is_all_that_a_client_needs(lab, tmp_path):
    answer = dict((await lab.server.ask(HERE, "auth.new", {"name": "ann", "role": "user"})).fields)
    path = tmp_path / "ann.key"
    path.write_text(key_file(answer))
    path.chmod(0o600)
    assert (await ask(find(key=path, environ={}), "ping"))["user"] == "ann"
    assert (await ask(find(environ={"FARM_KEY": str(path), "FARM_SOCKET": "/absent"}), "ping"))["user"] == "ann"
    folder = tmp_path / "farm"
    folder.mkdir()
    (folder / "client.toml").write_text(f'daemon = "{lab.entrance.endpoint}"\nkey = "{path}"  # mine\n')
    assert (await ask(find(environ={"XDG_CONFIG_HOME": str(tmp_path)}), "ping"))["user"] == "ann"
    assert "secret" not in repr(read_key(path)[0])
    path.chmod(0o640)
    with pytest.raises(UserError, match="others may read"):
        read_key(path)


def test_the_daemons_key_is_made_once_and_only_the_daemon_reads_it(tmp_path):
    path = tmp_path / "keys" / "server.key"
    first = server_keys(path)
    assert server_keys(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(ControlSocketError, match="others may read"):
        server_keys(path)
    path.chmod(0o600)
    path.write_text("nonsense")
    with pytest.raises(ControlSocketError, match="is no key"):
        server_keys(path)


async def test_a_taken_port_is_reported_and_the_other_interface_is_closed(lab, tmp_path):
    folder = tmp_path / "second"
    folder.mkdir()
    entrance = CurveListener(lab.entrance.endpoint, lab.accounts, folder / "server.key")
    server = ControlServer(
        folder / "control.sock", artifacts=ArtifactFolder(folder / "a"), accounts=lab.accounts, remote=entrance
    )
    with pytest.raises(ControlSocketError, match="cannot listen on"):
        await server.start()
    assert not (folder / "control.sock").exists()


def test_a_disk_that_is_full_leaves_no_key_that_is_none(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ControlSocketError, match="No space left"):
            server_keys(tmp_path / "server.key")
    assert not list(tmp_path.iterdir())
    assert server_keys(tmp_path / "server.key")


async def test_a_broken_database_admits_no_remote_caller_and_closes_no_interface(short_waits, lab, monkeypatch, caplog):
    key = await lab.new("ann")
    by_key = lab.accounts.by_curve_key
    asked, held = [], asyncio.Event()

    def broken(key):
        asked.append(key)
        held.set()
        raise RuntimeError("no such table: account")

    monkeypatch.setattr(lab.accounts, "by_curve_key", broken)
    with ControlClient(key) as client:
        waiting = asyncio.create_task(asyncio.to_thread(client.call, "count"))
        await asyncio.wait_for(held.wait(), HANG_S)
        monkeypatch.setattr(lab.accounts, "by_curve_key", by_key)
        with contextlib.suppress(DaemonUnreachableError):  # its own handshake may be the one that was lost
            await waiting
    with ControlClient(key) as client:
        assert await asyncio.to_thread(client.call, "count") == {"counted": 3}
        monkeypatch.setattr(lab.accounts, "by_curve_key", broken)  # now of a message
        held.clear()
        lost = asyncio.create_task(asyncio.to_thread(client.call, "count"))
        await asyncio.wait_for(held.wait(), HANG_S)
        monkeypatch.setattr(lab.accounts, "by_curve_key", by_key)
        with pytest.raises(FarmError, match="count failed inside farm"):
            await lost
    with ControlClient(key) as client:
        assert await asyncio.to_thread(client.call, "count") == {"counted": 3}
    assert "the check of a remote key failed" in caplog.text
    assert "count failed" in caplog.text
