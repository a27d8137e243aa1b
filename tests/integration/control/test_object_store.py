"""Artifacts in an object store: a folder, memory, and moto's S3 where it is installed."""

import asyncio
import hashlib
import os
import subprocess
import sys

import pytest

from farm.common.errors import Code
from farm.control.artifact_pull import ArtifactPull
from farm.control.artifacts import ArtifactFolder
from farm.control.object_store import ObjectStore
from tests.support.errors import raises_code

DATA = os.urandom(3 << 20)
SHA256 = hashlib.sha256(DATA).hexdigest()

MOTO = """
import time, boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
address = "http://%s:%d" % server.get_host_and_port()
boto3.client("s3", endpoint_url=address, region_name="us-east-1").create_bucket(Bucket="farm")
print(address, flush=True)
time.sleep(600)
"""


@pytest.fixture
def s3(monkeypatch):
    pytest.importorskip("moto", reason="moto[server,s3] is not installed")
    keys = {"AWS_ACCESS_KEY_ID": "lab", "AWS_SECRET_ACCESS_KEY": "lab", "AWS_REGION": "us-east-1"}
    server = subprocess.Popen([sys.executable, "-c", MOTO], stdout=subprocess.PIPE, text=True, env=os.environ | keys)
    try:
        address = server.stdout.readline().strip()
        for name, value in {**keys, "AWS_ENDPOINT": address, "AWS_ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(name, value)
        yield "s3://farm/some/prefix"
    finally:
        server.kill()
        server.communicate()


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request, tmp_path):
    (tmp_path / "objects").mkdir()
    found = {"folder": f"file://{tmp_path}/objects", "memory": "memory:///"}.get(request.param)
    return ObjectStore(found or request.getfixturevalue("s3"))


def puller_of(folder, store):
    async def sources(_sha256):
        return (store,)

    return ArtifactPull(folder, sources)


async def test_what_was_kept_there_comes_back(store, tmp_path):
    here, there = ArtifactFolder(tmp_path / "here"), ArtifactFolder(tmp_path / "there")
    await asyncio.to_thread(here.add, DATA)
    await store.keep(SHA256, here.path(SHA256))
    await store.keep(SHA256, here.path(SHA256))
    there.pull = puller_of(there, store)
    assert (await there.ensure(SHA256)).read_bytes() == DATA


async def test_a_pull_from_there_goes_on_where_it_stopped(store, tmp_path):
    here = ArtifactFolder(tmp_path / "here")
    await asyncio.to_thread(here.add, DATA)
    await store.keep(SHA256, here.path(SHA256))
    for offset in (0, 1, len(DATA) - 1, len(DATA)):
        async with store.read(SHA256, offset) as stream:
            assert stream.total_bytes == len(DATA)
            assert b"".join([chunk async for chunk in stream.chunks]) == DATA[offset:]


async def test_what_is_not_there_is_said_so(store, tmp_path):
    folder = ArtifactFolder(tmp_path / "here")
    folder.pull = puller_of(folder, store)
    with raises_code(Code.ARTIFACT_AWAY, match="the object store .*: there is no artifact"):
        await folder.ensure(SHA256)


async def test_a_store_that_does_not_answer(tmp_path, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT": "http://127.0.0.1:9",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "lab",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with raises_code(Code.ARTIFACT_AWAY, match="cannot be used"):
        await ObjectStore("s3://farm/prefix").keep(SHA256, path)


@pytest.mark.parametrize("url", ["nothing", "s4://bucket", ""])
def test_what_is_no_object_store_is_refused(url):
    with raises_code(Code.BAD_CONFIG, match="object_store"):
        ObjectStore(url)


def test_without_obstore_the_hint_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with raises_code(Code.BAD_CONFIG, match="not installed") as caught:
        ObjectStore("s3://bucket")
    assert "objectstore" in caught.value.hint
