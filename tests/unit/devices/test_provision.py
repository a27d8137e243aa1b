"""Provisioning against a scripted adb server: what it pushes, and when it waits for its turn."""

import hashlib
import tempfile
from pathlib import Path

import pytest

from farm.adb.client import AdbClient
from farm.bundle.model import Bundle, BundleFile
from farm.common.errors import Code, HostError
from farm.devices.server import phone_paths
from farm.devices.server.provision import provision
from tests.support.errors import raises_code
from tests.unit.adb.fake_server import fake_server


class PushSlot:
    """Records what was said to the server while it was held."""

    def __init__(self, server):
        self._server = server
        self.spans = []

    async def __aenter__(self):
        self._begun = len(self._server.spoken)

    async def __aexit__(self, *_):
        self.spans.append((self._begun, len(self._server.spoken)))


@pytest.fixture
async def server():
    with tempfile.TemporaryDirectory(prefix="farm-adb-") as folder:  # a unix socket's path must stay short
        async with fake_server(Path(folder)) as running:
            yield running


def bundle_in(folder):
    folder.mkdir()
    (folder / "tvm_rpc").write_bytes(b"server" * 50_000)
    data = (folder / "tvm_rpc").read_bytes()
    file = BundleFile("tvm_rpc", hashlib.sha256(data).hexdigest(), len(data), 0o755)
    return Bundle("one", file.sha256, "x86_64", (file,), folder, "default", (), "0.27", False)


async def test_only_the_push_takes_a_turn(server, tmp_path):
    bundle, client = bundle_in(tmp_path / "files"), AdbClient(server.socket)
    slot = PushSlot(server)
    sent = []
    await provision(client, server.serial, bundle, push_slot=slot, progress=sent.append)
    assert sent[-1].sent_bytes > 300_000
    [(begun, ended)] = slot.spans
    transfers = [number for number, words in enumerate(server.spoken) if words == "sync:"]
    assert transfers
    assert all(begun <= number < ended for number in transfers)
    sent.clear()
    await provision(client, server.serial, bundle, push_slot=slot, progress=sent.append)
    assert not sent
    assert len(slot.spans) == 1


async def test_a_bundle_that_is_gone_from_the_host_says_so(server, tmp_path):
    bundle, client = bundle_in(tmp_path / "files"), AdbClient(server.socket)
    (bundle.path / "tvm_rpc").unlink()
    with raises_code(Code.BUNDLE_DAMAGED, match="bundle one was removed or damaged") as caught:
        await provision(client, server.serial, bundle)
    assert "farm bundle verify one" in caught.value.hint


async def test_scripts_that_were_exchanged_under_the_daemon_are_not_blamed_on_the_bundle(server, tmp_path, monkeypatch):
    installed = tmp_path / "device_scripts"
    installed.mkdir()
    for file in phone_paths.scripts():
        (installed / file.name).write_bytes(file.local.read_bytes())
    monkeypatch.setattr(phone_paths, "scripts_folder", lambda: installed)
    phone_paths.scripts.cache_clear()
    try:
        phone_paths.scripts()  # as the daemon read them
        (installed / "reap.sh").write_text("#!/system/bin/sh\nexit 0\n")  # the upgrade
        with pytest.raises(HostError, match="no longer those that its daemon started with") as caught:
            await provision(AdbClient(server.socket), server.serial, bundle_in(tmp_path / "files"))
    finally:
        phone_paths.scripts.cache_clear()
    assert "restart its daemon" in caught.value.hint
