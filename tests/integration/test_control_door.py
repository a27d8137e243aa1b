"""The job door over real ipc: roles, progress, artifacts, garbage, absence."""

import asyncio
import grp
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
import zmq

from farm.control import router, shares
from farm.control.artifact_budget import ArtifactRules
from farm.control.artifacts import ArtifactError, ArtifactFolder, ArtifactMissingError, ArtifactStorageError
from farm.control.client import ControlClient
from farm.control.messages import MAX_FRAME_BYTES
from farm.control.router import Answer, DoorError
from farm.control.runtime_folder import RuntimeFolderError, group_to_let_in, prepare_runtime_folder
from farm.control.server import ControlServer, Role, Roles, UnknownKindError
from farm.core.errors import DaemonUnreachableError, FarmError, HostError, NotAllowedError, PhoneError
from tests.support.raw import until

ROOT = Path(__file__).parents[2]
SOMEBODY, FARM_GID = 61234, 61235  # ids of nobody
DAY_S = 24 * 3600.0
LARGE_BYTES = 200 << 20
FLOOD = 6000  # messages: more than ZeroMQ and the kernel keep for a caller that does not read


class Door:
    """A server with a few handlers, driven from threads as real clients drive it."""

    def __init__(self, folder: Path, gid: int | None = None) -> None:
        self.path = folder / "control.sock"
        self.artifacts = ArtifactFolder(folder / "artifacts")
        self.role = Role.OPERATOR
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.server = ControlServer(self.path, artifacts=self.artifacts, role_of=lambda uid: self.role, gid=gid)
        for kind, handler, role in (
            ("echo", self.echo, Role.VIEWER),
            ("count", self.count, Role.USER),
            ("flood", self.flood, Role.VIEWER),
            ("slow", self.slow, Role.USER),
            ("never", self.never, Role.USER),
            ("fails", self.fails, Role.VIEWER),
            ("bug", self.bug, Role.VIEWER),
            ("odd", self.odd, Role.VIEWER),
            ("change", self.echo, Role.OPERATOR),
        ):
            self.server.register(kind, handler, role)

    async def echo(self, call):
        return Answer({"fields": dict(call.fields), "user": call.caller.user}, call.request.frames)

    async def count(self, call):
        for number in range(3):
            await call.progress(number=number)
        return {"counted": 3}

    async def flood(self, call):
        for number in range(FLOOD):
            await call.progress(number=number, padding=" " * 500)
        return {}

    async def slow(self, call):
        await asyncio.sleep(0.7)  # longer than the server's first sign
        return {"done": True}

    async def never(self, call):
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return {}

    async def fails(self, call):
        raise PhoneError("the phone is on fire", hint="put it out", evidence="smoke")

    async def bug(self, call):
        raise KeyError("x")

    async def odd(self, call):
        return {"x": object()}

    async def call(self, kind, /, **fields):
        def run():
            with ControlClient(self.path) as client:
                return client.call(kind, **fields)

        return await asyncio.to_thread(run)


@pytest.fixture
async def door(tmp_path):
    door = Door(tmp_path)
    await door.server.start()
    yield door
    await door.server.stop()


async def test_a_call_is_answered_and_the_kernel_names_the_caller(door):
    answer = await door.call("echo", text="ä", number=1)
    assert answer["fields"] == {"text": "ä", "number": 1}
    assert answer["user"] == "root" if os.getuid() == 0 else answer["user"]


async def test_unread_answers_are_kept_up_to_a_size_and_the_door_stays_open(door, monkeypatch):
    monkeypatch.setattr(shares, "MAX_UNREAD_BYTES_PER_CONNECTION", 4 << 20)
    monkeypatch.setattr(router, "PATIENCE_S", 0.1)
    sha256 = door.artifacts.add(os.urandom(MAX_FRAME_BYTES))
    asked, calls = 60, door.server._router._calls
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.RCVHWM, 1)
        client.connect(door.server.endpoint)
        for number in range(asked):
            header = {"v": 1, "id": str(number), "kind": "artifact.get", "sha256": sha256, "offset": 0}
            client.send(json.dumps(header).encode())
        await until(lambda: calls)
        await until(lambda: not calls)
        assert 0 < door.server._router._unread._by_user[os.getuid()] <= 4 << 20
        assert (await door.call("echo", text="others"))["fields"]["text"] == "others"
        client.send(json.dumps(header | {"id": "refused"}).encode())  # told so, behind all that is unread
        answers = []
        while not answers or answers[-1][0]["id"] != "refused":
            assert await asyncio.to_thread(client.poll, 10_000)
            head, *frames = client.recv_multipart()
            answers.append((json.loads(head), frames))
        assert 3 <= sum(bool(frames) for _, frames in answers) < asked
        assert answers[-1][0]["error"]["code"] == "busy"
        client.send(json.dumps(header | {"id": "again"}).encode())
        assert await asyncio.to_thread(client.poll, 10_000)
        assert len(client.recv_multipart()[-1]) == MAX_FRAME_BYTES


async def test_the_socket_is_for_owner_and_group_only(door):
    assert stat.S_IMODE(door.path.stat().st_mode) == 0o660


def call_as_somebody(path, groups):
    """What another user who is in `groups` is answered, or told."""
    program = (
        "import sys; from pathlib import Path; from farm.control.client import ControlClient;"
        "print(ControlClient(Path(sys.argv[1])).call('echo')['user'])"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(path)], user=SOMEBODY, group=SOMEBODY, extra_groups=groups,
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=20,
    )  # fmt: skip


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_members_of_the_group_reach_the_daemon_and_outsiders_do_not():
    with tempfile.TemporaryDirectory(prefix="farm-group-") as made:
        os.chmod(made, 0o711)  # noqa: PTH101 (as /run is)
        folder = Path(made) / "run"
        prepare_runtime_folder(folder, FARM_GID)
        door = Door(folder, FARM_GID)
        await door.server.start()
        try:
            member = await asyncio.to_thread(call_as_somebody, door.path, [FARM_GID])
            outsider = await asyncio.to_thread(call_as_somebody, door.path, [])
        finally:
            await door.server.stop()
    assert (member.returncode, member.stdout.strip()) == (0, f"uid-{SOMEBODY}"), member.stderr
    assert outsider.returncode != 0
    assert "NotAllowedError" in outsider.stderr


def test_a_runtime_folder_is_made_for_owner_and_group(tmp_path):
    folder = tmp_path / "a" / "run"
    prepare_runtime_folder(folder, os.getegid())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    folder.chmod(0o700)  # of a daemon from before the group was there
    prepare_runtime_folder(folder, os.getegid())
    assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_gid) == (0o750, os.getegid())


def test_a_runtime_folder_that_others_may_enter_stays_so(tmp_path):
    tmp_path.chmod(0o755)
    prepare_runtime_folder(tmp_path, None)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_runtime_folder_that_anybody_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o1777)
    with pytest.raises(RuntimeFolderError, match="anybody may write"):
        prepare_runtime_folder(tmp_path, None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_runtime_folder_is_refused(tmp_path):
    folder, link = tmp_path / "run", tmp_path / "link"
    prepare_runtime_folder(folder, None)
    link.symlink_to(folder)
    os.chown(link, SOMEBODY, -1, follow_symlinks=False)
    with pytest.raises(RuntimeFolderError, match=f"belongs to uid {SOMEBODY}"):
        prepare_runtime_folder(link, None)
    os.chown(folder, SOMEBODY, -1)
    with pytest.raises(RuntimeFolderError, match=f"belongs to uid {SOMEBODY}"):
        prepare_runtime_folder(folder, None)


def test_a_runtime_folder_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeFolderError, match="Not a directory") as caught:
        prepare_runtime_folder(tmp_path / "file" / "run", None)
    assert "--runtime-dir" in caught.value.hint


def test_a_group_that_is_not_there_is_not_let_in():
    assert group_to_let_in("no-such-group-here") is None
    assert group_to_let_in(grp.getgrgid(os.getegid()).gr_name) == os.getegid()


async def test_progress_comes_ahead_of_the_answer(door):
    seen = []
    assert await door.call("count", on_progress=seen.append) == {"counted": 3}
    assert seen == [{"number": 0}, {"number": 1}, {"number": 2}]

    def stream():
        with ControlClient(door.path) as client:
            return list(client.stream("count"))

    assert await asyncio.to_thread(stream) == [*seen, {"counted": 3}]


async def test_signs_of_work_are_not_progress(door):
    seen = []
    assert await door.call("slow", on_progress=seen.append) == {"done": True}
    assert seen == []


async def test_a_slow_reader_gets_everything_and_holds_nobody_up(door):
    half_read, go_on = threading.Event(), threading.Event()

    def read_slowly():
        with ControlClient(door.path) as client:
            stream = client.stream("flood")
            seen = [next(stream)["number"]]
            half_read.set()
            assert go_on.wait(10)
            return seen + [answer["number"] for answer in stream if "number" in answer]

    reading = asyncio.create_task(asyncio.to_thread(read_slowly))
    await asyncio.to_thread(half_read.wait, 10)
    await door.call("echo")
    go_on.set()
    assert await reading == list(range(FLOOD))


async def test_a_stream_that_says_nothing_ends_at_its_limit(door):
    def stream():
        with ControlClient(door.path) as client:
            return list(client.stream("never", 0.7))  # the daemon's own sign of work comes before

    with pytest.raises(TimeoutError, match=r"'never' had no answer within 0\.7 s"):
        await asyncio.to_thread(stream)
    async with asyncio.timeout(5.0):
        await door.cancelled.wait()


async def test_errors_arrive_as_they_were_raised(door):
    with pytest.raises(PhoneError, match="on fire") as caught:
        await door.call("fails")
    assert (caught.value.hint, caught.value.evidence) == ("put it out", "smoke")
    with pytest.raises(FarmError, match="KeyError"):
        await door.call("bug")
    with pytest.raises(FarmError, match="not JSON"):
        await door.call("odd")
    with pytest.raises(UnknownKindError, match="'nonsense'"):
        await door.call("nonsense")


@pytest.mark.parametrize(
    ("role", "allowed"),
    [(Role.VIEWER, {"echo"}), (Role.USER, {"echo", "count"}), (Role.OPERATOR, {"echo", "count", "change"})],
)
async def test_each_role_may_do_its_part(door, role, allowed):
    door.role = role
    for kind in ("echo", "count", "change"):
        if kind in allowed:
            await door.call(kind)
        else:
            with pytest.raises(NotAllowedError, match=f"{kind} needs the role"):
                await door.call(kind)


def test_root_and_the_service_operate_and_strangers_look():
    now = [0.0]
    roles = Roles(service_uid=4242, group="no-such-group-here", clock=lambda: now[0])
    assert [roles(0), roles(4242), roles(4243)] == [Role.OPERATOR, Role.OPERATOR, Role.VIEWER]


async def test_a_caller_that_goes_away_ends_its_call(door):
    program = (
        "import sys; from pathlib import Path; from farm.control.client import ControlClient;"
        "ControlClient(Path(sys.argv[1])).call('never')"
    )
    caller = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(door.path), cwd=ROOT)
    try:
        await asyncio.wait_for(door.began.wait(), 10)
    finally:
        caller.kill()
        await caller.wait()
    await asyncio.wait_for(door.cancelled.wait(), 10)


async def test_a_daemon_that_stops_says_so_to_those_who_wait(tmp_path):
    door = Door(tmp_path)
    await door.server.start()
    waiting = asyncio.create_task(door.call("never"))
    await asyncio.wait_for(door.began.wait(), 10)
    await door.server.stop()
    async with asyncio.timeout(10.0):  # not after the client's 15 s of silence
        with pytest.raises(HostError, match="is stopping") as caught:
            await waiting
    assert caught.value.code == "stopping"
    assert door.cancelled.is_set()


async def test_garbage_never_closes_the_door(door):
    context = zmq.Context()
    try:
        for frames in (
            [b""], [b"x"], [b"", b"", b""], [b"\xff" * 100], [b'{"v":1}'], [b'{"v":1,"id":"a","kind":1}'],
            [b"{}", b"x" * (MAX_FRAME_BYTES + 1)], [b"[" * 50_000], [b"{}"] * 20,
        ):  # fmt: skip
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 500)
            dealer.connect(door.server.endpoint)
            dealer.send_multipart(frames)
            dealer.close()
        answered = context.socket(zmq.DEALER)
        answered.setsockopt(zmq.LINGER, 0)
        answered.connect(door.server.endpoint)
        answered.send(b'{"v":9,"id":"mine","kind":"echo"}')
        assert await asyncio.to_thread(answered.poll, 5000)
        reply = json.loads(answered.recv())
        answered.close()
        assert reply["id"] == "mine"
        assert reply["error"]["code"] == "protocol"
    finally:
        await asyncio.to_thread(context.term)
    _, writer = await asyncio.open_unix_connection(str(door.path))
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
    await writer.drain()
    writer.close()
    assert (await door.call("echo"))["fields"] == {}


@pytest.mark.parametrize("size", [0, 1, MAX_FRAME_BYTES, 2 * MAX_FRAME_BYTES + 17])
async def test_artifacts_come_back_as_they_went(door, size, tmp_path):
    data = os.urandom(size)
    source = tmp_path / "model"
    source.write_bytes(data)
    seen = []

    def both_ways():
        with ControlClient(door.path) as client:
            sha256 = client.put_artifact(source, on_progress=lambda done, total: seen.append((done, total)))
            assert client.put_artifact(data) == sha256
            return sha256, client.get_artifact(sha256)

    sha256, back = await asyncio.to_thread(both_ways)
    assert sha256 == hashlib.sha256(data).hexdigest()
    assert back == data
    assert seen[-1] == (size, size)
    assert door.artifacts.path(sha256).read_bytes() == data


async def test_an_interrupted_upload_goes_on_where_it_ended(tmp_path):
    folder, data = ArtifactFolder(tmp_path), os.urandom(3000)
    sha256 = hashlib.sha256(data).hexdigest()
    assert (await folder.put(sha256, 0, data[:1000], 3000)).size_bytes == 1000
    again = ArtifactFolder(tmp_path)  # the daemon was restarted
    assert (await again.put(sha256, 0, data[:1000], 3000)).size_bytes == 1000
    with pytest.raises(ArtifactMissingError):
        again.path(sha256)
    assert (await again.put(sha256, 1000, data[1000:], 3000)).complete
    assert await again.get(sha256, 2999) == (data[2999:], 3000)


async def test_wrong_bytes_are_dropped(tmp_path):
    folder, sha256 = ArtifactFolder(tmp_path), hashlib.sha256(b"right").hexdigest()
    with pytest.raises(ArtifactError, match="are not artifact"):
        await folder.put(sha256, 0, b"wrong", 5)
    assert (await folder.put(sha256, 0, b"right", 5)).complete


@pytest.mark.parametrize(
    ("sha256", "offset", "size", "total"),
    [
        ("../../etc/passwd", 0, 1, 1),
        ("a" * 63, 0, 1, 1),
        ("a" * 64, 5, 1, 4),
        ("a" * 64, 0, 5, 4),
        ("a" * 64, 0, 1, 1 << 40),
    ],
)
async def test_impossible_uploads_are_refused(tmp_path, sha256, offset, size, total):
    with pytest.raises(ArtifactError):
        await ArtifactFolder(tmp_path).put(sha256, offset, b"x" * size, total)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_an_empty_chunk_asks_how_much_is_there(tmp_path):
    folder, sha256 = ArtifactFolder(tmp_path), hashlib.sha256(b"right").hexdigest()
    assert (await folder.put(sha256, 0, b"", 5)).size_bytes == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    await folder.put(sha256, 0, b"ri", 5)
    assert (await folder.put(sha256, 2, b"", 5)).size_bytes == 2
    assert (await folder.put(hashlib.sha256().hexdigest(), 0, b"", 0)).complete


async def test_abandoned_uploads_are_dropped(tmp_path):
    folder, sha256 = ArtifactFolder(tmp_path), hashlib.sha256(b"right").hexdigest()
    await folder.put(sha256, 0, b"ri", 5)
    assert folder.drop_unneeded() == 0
    assert folder.drop_unneeded(time.time() + 1.1 * DAY_S) == 1


async def test_artifacts_nobody_used_for_a_month_are_dropped(tmp_path):
    folder, now_s = ArtifactFolder(tmp_path), time.time()
    old, asked, sent = (folder.add(data) for data in (b"old", b"asked for again", b"sent again"))
    for sha256 in (old, asked, sent):
        os.utime(tmp_path / sha256, (now_s - 31 * DAY_S,) * 2)
    await folder.get(asked, 0)
    await folder.put(sent, 0, b"", 10)
    assert folder.drop_unneeded(now_s) == 1
    with pytest.raises(ArtifactMissingError):
        folder.path(old)
    assert folder.path(asked).read_bytes() == b"asked for again"
    assert folder.path(sent).exists()


def test_a_full_artifact_folder_loses_what_was_unused_longest(tmp_path):
    folder, now_s = ArtifactFolder(tmp_path, ArtifactRules(budget_bytes=25)), time.time()
    kept = {}
    for days in (9, 5, 2, 0):
        kept[days] = tmp_path / folder.add(b"%10d" % days)
        os.utime(kept[days], (now_s - days * DAY_S,) * 2)
    assert [path.exists() for path in kept.values()] == [False, False, True, True]  # each made room for itself
    assert folder.used_bytes == 20
    assert folder.drop_unneeded(now_s) == 0


class Use:
    def __init__(self, live=(), results=()):
        self.live, self.results = lambda: live, lambda: results


async def test_an_upload_that_has_no_room_is_refused_with_what_to_do(tmp_path):
    first = b"first".ljust(20)
    use = Use(live={hashlib.sha256(first).hexdigest()})
    folder = ArtifactFolder(tmp_path, ArtifactRules(budget_bytes=30), use)
    kept = folder.path(folder.add(first))
    os.utime(kept, (0, 0))
    second = b"second".ljust(20)
    sha256 = hashlib.sha256(second).hexdigest()
    with pytest.raises(ArtifactStorageError, match=r"no room for .* GB of artifacts are in use") as caught:
        await folder.put(sha256, 0, second[:10], 20)
    assert "budget_gb" in caught.value.hint
    assert kept.exists()
    small = hashlib.sha256(b"small").hexdigest()
    assert (await folder.put(small, 0, b"small", 5)).complete


async def test_an_upload_counts_from_its_first_byte_and_not_after_it_was_refused(tmp_path):
    folder = ArtifactFolder(tmp_path, ArtifactRules(budget_bytes=30))
    data = os.urandom(20)
    sha256 = hashlib.sha256(data).hexdigest()
    await folder.put(sha256, 0, data[:10], 20)
    assert folder.used_bytes == ArtifactFolder(tmp_path).used_bytes == 10
    with pytest.raises(ArtifactError):
        await folder.put(sha256, 10, b"x" * 10, 20)
    assert folder.used_bytes == ArtifactFolder(tmp_path).used_bytes == 0


async def test_a_large_upload_is_never_in_memory_whole(door, tmp_path):
    source = tmp_path / "large"
    with source.open("wb") as file:
        file.truncate(LARGE_BYTES)

    def put():
        with ControlClient(door.path) as client:
            return client.put_artifact(source)

    tracemalloc.start()
    try:
        sha256 = await asyncio.to_thread(put)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert door.artifacts.path(sha256).stat().st_size == LARGE_BYTES
    assert peak < LARGE_BYTES / 10  # of door and client together


def test_no_daemon_is_said_with_a_hint(tmp_path):
    with pytest.raises(DaemonUnreachableError, match="no farm daemon listens") as caught:
        ControlClient(tmp_path / "control.sock").call("status")
    assert "farm serve" in caught.value.hint


def test_a_stuck_daemon_is_given_up_after_two_seconds(tmp_path):
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{tmp_path}/control.sock")
    try:
        with pytest.raises(DaemonUnreachableError, match="did not answer for 2 s"):
            ControlClient(tmp_path / "control.sock").call("status")
    finally:
        router.close(linger=0)
        context.term()


async def test_a_starting_daemon_is_waited_for(tmp_path):
    door = Door(tmp_path)
    with ControlClient(door.path) as client:
        with pytest.raises(DaemonUnreachableError):
            client.wait_until_up(30, alive=lambda: False)
        waiting = asyncio.create_task(asyncio.to_thread(client.wait_until_up, 10))
        await door.server.start()
        await waiting
        assert (await asyncio.to_thread(client.call, "ping"))["role"] == "operator"
    await door.server.stop()


async def test_a_second_daemon_is_refused_and_a_dead_ones_socket_is_replaced(door, tmp_path):
    second = ControlServer(door.path, artifacts=door.artifacts)
    with pytest.raises(DoorError, match="another process listens"):
        await second.start()
    assert (await door.call("echo"))["fields"] == {}
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
        dead.listen()
    assert stale.exists()
    third = ControlServer(stale, artifacts=door.artifacts)
    await third.start()
    await third.stop()


async def test_a_path_too_long_for_a_socket_is_explained(tmp_path):
    server = ControlServer(tmp_path / ("x" * 120) / "control.sock", artifacts=ArtifactFolder(tmp_path / "a"))
    with pytest.raises(DoorError, match="longer than 107"):
        await server.start()


def test_the_client_imports_nothing_heavy():
    program = (
        "import sys; import farm.control.client;"
        "print(sorted({m.split('.')[0] for m in sys.modules} & set(sys.argv[1:])))"
    )
    heavy = ("tvm", "numpy", "sqlalchemy", "fastapi", "pydantic", "adbutils", "asyncio")
    out = subprocess.run([sys.executable, "-c", program, *heavy], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"
