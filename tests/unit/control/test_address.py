"""Finding the daemon: what is given, the environment, the client's file, this host."""

from pathlib import Path

import pytest

from farm.common.errors import UserError
from farm.common.install import default_runtime_dir
from farm.control import address
from farm.control.address import ClientKey, Remote, find, read_key, remote

KEY = 'name = "ann"\ndaemon = "tcp://lab:9192"\n' + "".join(
    f'{name} = "{letter * 40}"\n' for name, letter in (("server_key", "s"), ("public_key", "p"), ("secret_key", "x"))
)
CLIENT_KEY = ClientKey("ann", "s" * 40, "p" * 40, "x" * 40)


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "ann.key"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


def test_without_a_word_it_is_this_hosts(tmp_path):
    assert find(environ={"XDG_CONFIG_HOME": str(tmp_path)}) == default_runtime_dir() / "control.sock"
    assert find(environ={"FARM_SOCKET": "/run/x.sock"}) == Path("/run/x.sock")
    assert find("/run/y.sock", environ={"FARM_SOCKET": "/run/x.sock"}) == Path("/run/y.sock")


def test_a_key_names_its_lab_and_an_address_beats_it(key, tmp_path):
    found = find(key=key, environ={})
    assert found == Remote("lab", 9192, CLIENT_KEY)
    assert "x" * 40 not in repr(found) + str(found)
    assert find("tcp://127.0.0.1:7000", key, environ={}) == Remote("127.0.0.1", 7000, CLIENT_KEY)
    assert find(environ={"FARM_DAEMON": "tcp://[::1]:7000", "FARM_KEY": str(key)}) == Remote("[::1]", 7000, CLIENT_KEY)
    assert str(find("tcp://other", key, environ={})) == "tcp://other:9192"
    with pytest.raises(UserError, match="needs a key"):
        find("tcp://lab", environ={"XDG_CONFIG_HOME": str(tmp_path)})


def test_the_clients_file_is_asked_last(key, tmp_path):
    (tmp_path / "farm").mkdir()
    (tmp_path / "farm" / "client.toml").write_text(f'# mine\n\ndaemon = "tcp://lab.example"\nkey = "{key}" # here\n')
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert find(environ=environ) == Remote("lab.example", 9192, CLIENT_KEY)
    assert find(environ={**environ, "FARM_SOCKET": "/x"}) == Path("/x")
    assert find("tcp://else", environ=environ) == Remote("else", 9192, CLIENT_KEY)


@pytest.mark.parametrize(
    "address", ["tcp://", "tcp:lab:1", "tcp://lab:0", "tcp://lab:99999", "tcp://a b", "tcp://$(id)"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UserError, match="no daemon's address"):
        remote(address, CLIENT_KEY)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("127.0.0.1:29192", "write tcp://127.0.0.1:29192"),
        ("lab", "write tcp://lab"),
        ("http://lab:9191/jobs", "write tcp://lab"),  # the page's port is not the daemon's
        ("unix://x y", "tcp://HOST:PORT, or a socket's path with a / in it"),
    ],
)
def test_what_is_neither_an_address_nor_a_path_says_what_to_write(key, typed, hint):
    with pytest.raises(UserError, match="no daemon's address") as refused:
        find(typed, key, environ={})
    assert refused.value.hint == hint


@pytest.mark.parametrize("text", ["", "nonsense", KEY.replace("s" * 40, "s" * 39), KEY.replace("x" * 40, '"'), "\xff"])
def test_what_is_no_key_file_is_refused(key, text):
    key.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError):
        read_key(key)


def test_a_members_own_daemon_comes_before_the_service(tmp_path, monkeypatch):
    own, service, unit = (tmp_path / name for name in ("own/control.sock", "service/control.sock", "farm.service"))
    monkeypatch.setattr(address, "default_runtime_dir", lambda: own.parent)
    assert address._of_this_host(service, unit) == own  # neither: the hint tells to start one
    unit.touch()
    assert address._of_this_host(service, unit) == service  # it is stopped: systemd has removed its folder
    unit.unlink()
    service.parent.mkdir()
    assert address._of_this_host(service, unit) == service
    own.parent.mkdir()
    own.touch()
    assert address._of_this_host(service, unit) == own
