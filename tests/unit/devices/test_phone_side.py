"""What device scripts and adb's list say, as values; provisioning: what it pushes, and when it waits for its turn."""

import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.adb.client import AdbClient, ShellResult
from farm.adb.devices import AdbDevice, AdbState, parse_device_list
from farm.adb.errors import AdbLinkLost, AdbTimeout
from farm.bundle.model import Bundle, BundleFile
from farm.common.errors import Code, HostError, PhoneError
from farm.common.phone_text import SECTION
from farm.devices.agent import back_off_s
from farm.devices.lifecycle.messages import LinkState, listed
from farm.devices.server import phone_paths
from farm.devices.server.phone_paths import ROOT, scripts, scripts_hash
from farm.devices.server.provision import installed_command, parse_installed, provision
from farm.devices.server.rpc_server import RpcServer, RunningServer, describe_death, parse_status
from tests.support.errors import raises_code
from tests.unit.adb.fake_server import fake_server

HASH = "ab" * 32
FILES = (BundleFile("tvm_rpc", "00" * 32, 1234, 0o755), BundleFile("libtvm_runtime.so", "11" * 32, 99, 0o644))
BUNDLE = Bundle("x", HASH, "arm64-v8a", FILES, Path("/nowhere"), "default", (), "0.27", False)
SCRIPTS = [scripts_hash(), *(f"{file.size} 755 {file.name}" for file in scripts())]
STATUS = "boot_now=b\nversion=1\nid=i\nboot=b\nbundle=h\npid=7\nport=5001\nstarted=1\nsessions=2\nadoptable=yes\n"


def installed_text(**changes):
    sections = {
        "scripts": "".join(f"{line}\n" for line in SCRIPTS),
        "bundles": f".\n..\n{HASH}\n.incoming-{HASH}\n{'cd' * 32}\n.incoming-{'ef' * 32}\nnotes\n$(reboot)\n",
        "marker": f"{HASH}\n",
        "files": "1234 755 tvm_rpc\n99 644 libtvm_runtime.so\n",
        "server": STATUS,
    } | changes
    return "".join(f"{SECTION}{name}\n{text}" for name, text in sections.items()).encode()


def test_a_whole_phone():
    installed = parse_installed(installed_text(), BUNDLE)
    assert installed.scripts_current
    assert installed.bundle_whole
    assert installed.others == ("cd" * 32, f".incoming-{'ef' * 32}")
    assert (installed.server.adoptable, installed.server.port, installed.server.sessions) == (True, 5001, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"marker": ""},
        {"marker": "another\n"},
        {"files": "1234 755 tvm_rpc\n"},
        {"files": "1234 755 tvm_rpc\n98 644 libtvm_runtime.so\n"},
        {"files": "1234 644 tvm_rpc\n99 644 libtvm_runtime.so\n"},
    ],
)
def test_a_bundle_that_is_not_whole(changes):
    assert not parse_installed(installed_text(**changes), BUNDLE).bundle_whole


@pytest.mark.parametrize("missing", range(len(SCRIPTS)))
def test_scripts_that_are_not_all_there(missing):
    told = "\n".join(SCRIPTS[:missing] + SCRIPTS[missing + 1 :])
    assert not parse_installed(installed_text(scripts=f"{told}\n"), BUNDLE).scripts_current


def test_an_empty_phone():
    installed = parse_installed(b"", BUNDLE)
    assert not any((installed.scripts_current, installed.bundle_whole, installed.others, installed.server.adoptable))


@given(st.binary(max_size=300))
def test_no_output_breaks_the_parser_or_makes_a_server_adoptable(noise):
    installed = parse_installed(noise + installed_text(server="") + noise, BUNDLE)
    assert not installed.server.adoptable


@pytest.mark.parametrize(
    "text", ["", "adoptable=no\nwhy=x\n", "adoptable=yes\nport=-1\n", "adoptable=yes\nport=70000\n", "adoptable=yes\n"]
)
def test_a_server_without_a_port_is_not_adoptable(text):
    status = parse_status(text)
    assert not status.adoptable
    assert status.why


def test_the_command_asks_about_this_server_and_only_about_files_of_the_bundle():
    server = RunningServer(5000, HASH, "secret")
    command = installed_command(BUNDLE, server)
    assert f"status {HASH} {server.secret_sha256}" in command
    assert "secret" not in command.replace(server.secret_sha256, "")
    assert f"cd {ROOT}/bundles/{HASH}" in command
    assert "secret" not in repr(server)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("died status=139 at=5", "the RPC server died of signal 11"),
        ("died status=1 at=5", "the RPC server exited with 1"),
        ("died status=supervisor-killed at=5", "the RPC server is gone (supervisor-killed)"),
        ("died", "the RPC server is gone (unknown)"),
    ],
)
def test_a_death_in_words(line, said):
    assert describe_death(line) == said


@pytest.mark.parametrize("state", AdbState)
def test_every_state_of_adb_says_why_and_only_device_is_usable(state):
    event = listed(AdbDevice("s", state), "adb -P 5038 -s s")
    assert (event.link is LinkState.USABLE) == (state is AdbState.DEVICE)
    assert event.reason or event.link is LinkState.USABLE
    assert ("adb " in event.hint) == ("adb -P 5038 -s s " in event.hint)


def test_missing_permissions_are_told_in_adbs_words_too():
    text = "0123456789ABCDEF       no permissions (user in plugdev group; are your udev rules wrong?) usb:1-2"
    device = parse_device_list(text)[0]
    event = listed(device, "adb")
    assert event.link is LinkState.OFFLINE
    assert "USB node" in event.reason
    assert "udev" in event.reason + event.hint


def test_waiting_grows_to_a_minute_and_scatters():
    for attempt, least_s in ((1, 0.5), (2, 1.0), (3, 2.0), (20, 60.0)):
        waits = {back_off_s(attempt) for _ in range(20)}
        assert len(waits) > 1
        assert all(least_s <= wait_s <= least_s + 0.5 for wait_s in waits)


async def test_a_server_that_hangs_on_a_phone_that_answers_is_at_fault():
    class Phone:
        async def shell(self, _, command, *, timeout_s):
            if " start " in command:
                raise AdbTimeout(f"not finished in {timeout_s} s")
            return ShellResult(b"dlopen: waits for the GPU\n", b"", 0)

    with pytest.raises(PhoneError, match="did not bind within 20 s") as caught:
        await RpcServer(Phone(), "S1").start(HASH)
    assert caught.value.code == Code.SERVER_NOT_STARTED
    assert "waits for the GPU" in caught.value.evidence


@pytest.mark.parametrize(
    ("state", "reconnectable"),
    [
        (AdbState.OFFLINE, True),
        (AdbState.HOST, True),  # seen where an adb server was replaced in the middle of a phone's handshake
        (AdbState.UNKNOWN, True),
        (AdbState.UNAUTHORIZED, True),
        (AdbState.BOOTLOADER, False),
        (AdbState.RECOVERY, False),
        (AdbState.NO_PERMISSIONS, False),
    ],
)
def test_only_a_link_that_may_come_right_by_itself_is_made_anew(state, reconnectable):
    assert listed(AdbDevice("S1", state), "adb").reconnectable is reconnectable


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


async def test_a_cut_push_leaves_no_bundle_and_the_next_one_goes_on(server, tmp_path):
    bundle, client = bundle_in(tmp_path / "files"), AdbClient(server.socket)
    folder = server.local(f"{ROOT}/bundles")
    server.cut_after = 200_000
    with pytest.raises(AdbLinkLost):
        await provision(client, server.serial, bundle)
    assert [path.name for path in folder.iterdir()] == [f".incoming-{bundle.hash}"]
    server.cut_after = None
    await provision(client, server.serial, bundle)
    assert [path.name for path in folder.iterdir()] == [bundle.hash]
    assert (await provision(client, server.serial, bundle, deep=True)).pushed_files == 0


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
