"""Stock clients under the farm's rules: who they are, what they may have, and that only living ones are pending."""

import asyncio
import os
import pwd
import socket
import struct
import threading
from contextlib import nullcontext

import pytest

from farm.common import peers
from farm.common.peers import owner_of
from farm.head.config import UserConfig
from farm.head.model import LeasePolicy
from farm.model.sessions import Peer
from farm.tvm_server import wire
from farm.tvm_server.listener import peer_of
from tests.support.errors import raises_code
from tests.support.local_head import requests_of
from tests.support.raw import encode_message
from tests.support.tvm_port import TvmPort
from tests.support.waiting import HANG_S, until

ME = pwd.getpwuid(os.getuid()).pw_name
NOBODY = pwd.getpwnam("nobody")


def pending(lab):
    return (lab.queue("android") or {"pending": 0})["pending"]


def users(lab):
    return [each.request.user for each in requests_of(lab.leasing).waiting()]


@pytest.mark.parametrize(
    ("bound", "family", "dialled"),
    [
        ("127.0.0.1", socket.AF_INET, "127.0.0.1"),
        ("::1", socket.AF_INET6, "::1"),
        ("::", socket.AF_INET, "127.0.0.1"),
        ("::", socket.AF_INET6, "::1"),
        ("::", socket.AF_INET6, "::ffff:127.0.0.1"),
        ("127.0.0.1", socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
async def test_a_client_of_this_host_is_the_owner_of_its_socket(bound, family, dialled):
    async with TvmPort(address=bound) as lab:
        client = await lab.client(family=family, address=dialled)
        await client.send(encode_message(wire.TrackerRequest("android", "somebody-else", 1)))
        await until(lambda: users(lab) == [ME])


@pytest.mark.skipif(os.getuid() != 0, reason="only root may open a socket as somebody else")
@pytest.mark.parametrize(("family", "dialled"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")])
async def test_another_users_socket_is_that_user(family, dialled):
    async with TvmPort(address="::") as lab:
        os.seteuid(NOBODY.pw_uid)
        try:
            sock = socket.socket(family)
        finally:
            os.seteuid(0)
        client = await lab.client(address=dialled, sock=sock)
        await client.send(encode_message(wire.TrackerRequest("android", "root", 1)))
        await until(lambda: users(lab) == ["nobody"])


async def test_a_login_outside_the_group_is_barred_from_tracker_and_sessions():
    """Any login of the host ran code on phones through the loopback port."""
    members = {ME}

    async def may_use(login):
        return login in members

    async with TvmPort("one") as lab:
        lab.leasing.tvm.may_use = may_use
        client = await lab.client()
        await client.send(encode_message(wire.TrackerRequest("android", "", 1)))
        code, (_, _, key) = await client.answer()
        assert code == wire.TrackerCode.SUCCESS
        members.clear()
        barred = await lab.client()
        for message in (wire.TrackerRequest("android", "", 1), wire.TrackerCode.SUMMARY):
            await barred.send(encode_message(message))
            code, why = await barred.answer()
            assert (code, "not in the group farm" in why) == (wire.TrackerCode.FAIL, True)
        with raises_code("not_allowed"):
            await lab.leasing.tvm.open(key, Peer("127.0.0.1", 1, ME), 1.0, lambda _: None)


@pytest.mark.parametrize(
    ("peer", "barred"),
    [
        (Peer("127.0.0.1", 1, "ann"), True),
        (Peer("10.1.2.3", 1, "ann"), True),  # at an address of this host
        (Peer("127.0.0.1", 1, "127.0.0.1"), True),  # nobody knows whose
        (Peer("10.1.2.3", 1, "127.0.0.1"), True),
        (Peer("10.1.2.4", 1, "10.1.2.4"), False),  # of another host
        (Peer("127.0.0.1", 1, "ann@lab2"), False),  # which has admitted it
    ],
)
async def test_logins_of_this_host_are_asked_about(peer, barred):
    async def nobody(_):
        return False

    async with TvmPort() as lab:
        assert lab.leasing.tvm.admit(peer) is None
        lab.leasing.tvm.may_use = nobody
        with raises_code("not_allowed") if barred else nullcontext():
            if (admission := lab.leasing.tvm.admit(peer)) is not None:
                await admission


async def test_a_name_service_that_hangs_does_not_hold_the_loop(monkeypatch):
    asked, answers = [], threading.Event()

    def user_name(uid):
        asked.append(uid)
        return "slow-name" if answers.wait(HANG_S) else "the loop waited"

    monkeypatch.setattr(peers, "user_name", user_name)
    async with TvmPort() as lab:
        coming = asyncio.create_task(lab.client())
        await until(lambda: asked)
        answers.set()
        for client in (await coming, await lab.client()):
            await client.send(encode_message(wire.TrackerRequest("android", "root", 1)))
        await until(lambda: users(lab) == ["slow-name"] * 2)
        assert asked == [os.getuid()]


@pytest.mark.parametrize("how", ["closed", "half-closed", "reset"])
@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_socket_that_is_closing_proves_nobody(family, address, how):
    """The kernel says uid 0 of a socket that no process has any more."""
    with socket.create_server((address, 0), family=family) as listener:
        dialler = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
        with accepted, dialler:
            owner = owner_of(accepted)
            assert owner == (os.getuid(), os.fstat(dialler.fileno()).st_ino)
            if how == "half-closed":
                dialler.shutdown(socket.SHUT_WR)
            else:
                if how == "reset":
                    dialler.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                dialler.close()
            if how == "reset":
                with pytest.raises(OSError, match="not connected"):
                    owner_of(accepted)
            else:
                assert owner_of(accepted) is None
                assert peer_of(accepted)[1] is None


def test_a_socket_in_time_wait_proves_nobody():
    """Whoever dials from the port of such a socket is asked about before the kernel has forgotten it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        dialler = socket.create_connection(("127.0.0.1", port))
        accepted, _ = listener.accept()
        dialled_from = dialler.getsockname()[1]
        dialler.close()
        accepted.close()
        assert peers._owner("127.0.0.1", dialled_from, "127.0.0.1", port) is None
        assert peers._owner("127.0.0.1", port, "127.0.0.1", 1) is None  # a listener is no peer either


async def test_a_stock_client_holds_no_more_than_its_users_quota():
    async with TvmPort("a", "b", lease=LeasePolicy(unused_s=0.5, quota=UserConfig(devices=1))) as lab:
        first, second = await lab.client(), await lab.client()
        code, _ = await first.ask(wire.TrackerRequest("android", "", 1))
        assert code == 0
        await second.send(encode_message(wire.TrackerRequest("android", "", 1)))
        await until(lambda: pending(lab) == 1)
        assert [holder.lease.request.user for holder in lab.leasing.active.holders()] == [ME]
        assert (await second.answer())[0] == 0  # the first grant was not used and is reclaimed
        assert not requests_of(lab.leasing).waiting()


async def test_a_priority_beyond_the_users_is_lowered_to_it():
    policy = LeasePolicy(quota=UserConfig(priority=4))
    async with TvmPort(lease=policy) as lab:
        for priority in (9, 4, 1, -3):
            client = await lab.client()
            await client.send(encode_message(wire.TrackerRequest("android", "", priority)))
            await until(
                lambda wanted=priority: (
                    min(wanted, 4) in [w.request.priority for w in requests_of(lab.leasing).waiting()]
                )
            )
        assert [each.request.priority for each in requests_of(lab.leasing).waiting()] == [4, 4, 1, -3]


@pytest.mark.parametrize("how", ["closed", "reset", "half-closed"])
async def test_a_client_that_leaves_while_it_waits_is_not_pending_any_more(how):
    async with TvmPort() as lab:
        leaving, staying, asking = await lab.client(), await lab.client(), await lab.client()
        for client in (leaving, staying):
            await client.send(encode_message(wire.TrackerRequest("android", "", 1)))
        await until(lambda: pending(lab) == 2)
        if how == "reset":
            leaving.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if how == "half-closed":
            leaving.sock.shutdown(socket.SHUT_WR)
        else:
            leaving.close()
        # At once: whoever asks after it left is told so.
        assert (await asking.summary())["queue_info"]["android"] == {"free": 0, "pending": 1}
        lab.devices.add("pixel", "android")
        assert (await staying.answer())[0] == 0
