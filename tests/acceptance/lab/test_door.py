"""Two hosts with a phone each: stock TVM clients at either host's port use both phones, as if it had both."""

import os
import sys
from subprocess import run

import pytest

from tests.adb_server import adb_binaries
from tests.support import postgres
from tests.support.held_lease import acquire, adb, closed, use_tvm
from tests.support.stock_client import Clients
from tests.support.tvm import environment
from tests.support.whole_farm import ON_PHONE, Story, answer, until
from tests.support.whole_lab import LISTEN, TwoHosts, whole_lab

LIMIT_S = 300.0
pytestmark = pytest.mark.timeout(LIMIT_S)
USE = "session = connect().request({!r}); tell(add_one(session)); close(session)"
HOLD = "session = connect().request({!r}); tell(add_one(session)); wait(); tell(outcome(add_one, session)); wait()"


@pytest.fixture(scope="module")
def lab(kernel):
    postgres.need()
    with whole_lab() as whole:
        lab = TwoHosts(whole, LISTEN, LISTEN)
        lab.at_one, lab.at_two = Clients(lab.one, kernel), Clients(lab.two, kernel)
        yield lab
        until(lambda: not whole.judged())


def test_a_stock_client_uses_a_phone_of_another_host_and_is_known_there(lab):
    story = Story(lab.two)
    assert lab.at_one.result(USE.format(lab.there.name)) is True
    lease = story.until("lease.granted", device=lab.there.name)["subject"]
    ended = story.until("session.ended", subject=lease)
    opened = next(each for each in story.events if (each["kind"], each["subject"]) == ("session.opened", lease))
    assert opened["data"]["peer"].startswith("127.0.0.1:")
    assert ended["data"]["outcome"] == "closed"
    [(user, holder, sha256)] = lab.lab.rows(
        f"SELECT \"user\", holder_host, match_sha256 FROM lease WHERE id = '{lease}'"
    )
    assert user == opened["data"]["user"] != ""
    assert (holder, len(sha256)) == ("one", 64)


def test_both_ports_serve_both_phones(lab):
    for clients in (lab.at_one, lab.at_two):
        for name in (lab.here.name, lab.there.name):
            assert clients.result(USE.format(name)) is True


def test_a_client_that_leaves_while_it_waits_keeps_nobody_from_the_phone(lab):
    with lab.at_two.running(HOLD.format(lab.there.name)) as holder:
        assert holder.hear() is True
        with lab.at_one.running(USE.format(lab.there.name)) as waits:
            until(lambda: lab.lab.rows("SELECT id FROM request WHERE host = 'one'"))
            waits.kill()
        until(lambda: not lab.lab.rows("SELECT id FROM request"))
        with lab.at_one.running(USE.format(lab.there.name)) as next_one:
            until(lambda: lab.lab.rows("SELECT id FROM request WHERE host = 'one'"))
            holder.go()
            assert holder.hear() == ""
            holder.go()
            holder.finish()
            assert next_one.hear() is True


@pytest.mark.parametrize("at", ["one", "two"])
def test_query_rpc_tracker_shows_both_phones_at_either_port(lab, at):
    def rows():
        host, port = (lab.one if at == "one" else lab.two).tracker()
        command = [sys.executable, "-m", "tvm.exec.query_rpc_tracker", "--host", host, "--port", str(port)]
        said = run(command, capture_output=True, text=True, check=True, env=environment()).stdout
        return [line.split() for line in said.splitlines()]

    until(lambda: ["android", "2", "2", "0"] in rows())
    assert {lab.here.name, lab.there.name} <= {row[0] for row in rows() if row}
    with lab.at_one.running(HOLD.format(lab.there.name)) as client:
        assert client.hear() is True
        until(lambda: ["android", "2", "1", "0"] in rows())


def test_a_lease_of_a_phone_of_another_host_is_used_at_this_one(lab, tmp_path):
    held = acquire(lab.one, lab.there.name, "--note", "a driver")
    assert (held["tvm_host"], held["tvm_port"]) == lab.one.tracker()
    until(lambda: lab.one.client.call("lease.list")["leases"])
    [row] = lab.one.client.call("lease.list")["leases"]
    assert (row["id"], row["note"], row["expires_at"] is None) == (held["lease"], "a driver", False)
    for binary in adb_binaries().values():
        listed = adb(held, "devices", binary=binary)
        assert listed.stdout.split("\n")[1:] == [f"{held['serial']}\tdevice", "", ""], listed
    sent, back = tmp_path / "sent", tmp_path / "back"
    sent.write_bytes(os.urandom(5 << 20))
    for done in (adb(held, "push", sent, f"{ON_PHONE}/mine"), adb(held, "pull", f"{ON_PHONE}/mine", back)):
        assert done.returncode == 0, done
    assert back.read_bytes() == sent.read_bytes()
    assert adb(held, "shell", "exit 7").returncode == 7
    for words in (("forward", "tcp:0", "tcp:1"), ("reverse", "tcp:6100", "tcp:9")):
        assert "the leased phone is at another host" in adb(held, *words).stderr
    used = use_tvm(held)
    assert used.stdout == "used\n", used
    assert answer(lab.one.farm("lease", "show", lab.there.name, "--json")) == held
    lab.one.daemon.kill()
    lab.one.daemon.start().close()
    until(lambda: adb(held, "shell", "echo still mine").stdout == "still mine\n")
    assert lab.one.farm("lease", "release", held["lease"]).returncode == 0
    until(lambda: "no lease" in adb(held, "devices").stderr or closed(held["adb_port"]))
    until(lambda: closed(held["adb_port"]))
    done = lab.one.farm("lease", "run", "--on", lab.there.name, "--", "sh", "-c", "adb shell echo $FARM_DEVICE; exit 3")
    assert (done.returncode, done.stdout) == (3, f"{lab.there.name}\n"), done
    lab.until_ready()


# The host that was started last is killed: those that were started before it know the processes of the others.
@pytest.mark.parametrize("killed", ["entrance", "phone's host"])
def test_a_daemon_that_is_killed_in_a_session_leaves_no_lease(lab, killed):
    clients, phone = (lab.at_two, lab.here.name) if killed == "entrance" else (lab.at_one, lab.there.name)
    with clients.running(HOLD.format(phone)) as client:
        assert client.hear() is True
        lab.two.daemon.kill()
        client.go()
        assert client.hear() != ""
    if killed == "entrance":
        until(lambda: not lab.lab.rows("SELECT id FROM lease WHERE ended_at IS NULL"))
    lab.two.daemon.start().close()
    lab.until_ready()
    until(lambda: not lab.lab.rows("SELECT id FROM lease WHERE ended_at IS NULL"))
    assert lab.at_one.result(USE.format(lab.there.name)) is True
    assert lab.at_two.result(USE.format(lab.here.name)) is True


def test_a_host_that_is_removed_under_a_session_takes_only_its_own_phones_along(lab):
    gone = lab.there.name
    with lab.at_one.running(HOLD.format(gone)) as cut, lab.at_one.running(HOLD.format(lab.here.name)) as kept:
        assert cut.hear() is kept.hear() is True
        answer(lab.one.farm("host", "remove", "two", "--force", "--url", lab.lab.url, "--json"))
        assert lab.two.daemon.wait() == "exit code 1"
        assert "This host was removed from the lab." in lab.two.daemon.log_end()
        until(lambda: [row["name"] for row in lab.one.status()["devices"]] == [lab.here.name])
        for client in (cut, kept):
            client.go()
        assert cut.hear() != ""
        assert kept.hear() == ""
        kept.go()
        kept.finish()
    reasons = lab.lab.rows(f"SELECT reason FROM lease WHERE device = '{gone}' ORDER BY fence DESC LIMIT 1")
    # Its daemon, which stops, and the head both end it; the first is right.
    assert reasons in ([("host two was removed from the lab",)], [("the farm is stopping",)])
    assert lab.at_one.result(USE.format(lab.here.name)) is True
