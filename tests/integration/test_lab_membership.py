"""Tokens with which hosts join a lab's database, and removal: each host's role on a real PostgreSQL with passwords."""

import json
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
from typer.testing import CliRunner

from farm.cli.main import app
from farm.common.doctor_findings import FAIL
from farm.common.errors import Code, HostError, NotAllowedError, UserError
from farm.store import membership
from farm.store.engine import outage_of
from farm.store.host_token_policy import HostToken
from farm.store.lab_roles import SETTLE, LabRoles
from farm.store.membership import OrderedBy
from farm.store.schema import metadata
from farm.store.server_opening import Standby, StoreRole, look_at_server
from farm.store.server_rules import ROLE
from farm.store.store import Store
from tests.support import postgres
from tests.support.errors import raises_code

BY = OrderedBy("ann", "uid 1000 on lab1")
OWNERS = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"
# The attack of a host that owned the tables, and what leads to it.
TRIGGERS = [
    f"CREATE TRIGGER mine BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    for table in ("host", "host_token", "meta", "job")
]
RIGHTS = (
    "ALTER TABLE job ADD COLUMN later int", "ALTER TABLE host OWNER TO farm", "TRUNCATE audit", "DROP TABLE audit",
    "CREATE INDEX ON job (kind)", "CREATE RULE mine AS ON INSERT TO host DO ALSO NOTHING", "CREATE TABLE mine (a int)",
    "CREATE POLICY mine ON host USING (true)", "ALTER TABLE audit DISABLE TRIGGER ALL",
)  # fmt: skip


@pytest.fixture(scope="module")
def server():
    postgres.need()
    with postgres.guarded_server() as server:
        yield server


class Lab:
    """A database of the role `farm`, the administrator's, which may make roles."""

    def __init__(self, server):
        self.server = server
        name = self.name = postgres.new_database(server.url).partition("?")[0].rpartition("/")[2]
        self.superuser(
            "DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'farm') THEN "
            "CREATE ROLE farm LOGIN CREATEROLE PASSWORD 'x'; CREATE ROLE plain LOGIN PASSWORD 'x'; END IF; END $$"
        )
        self.superuser(f"ALTER DATABASE {name} OWNER TO farm")
        self.url = f"postgresql://farm:x@127.0.0.1:{server.port}/{name}"
        self.id, _ = membership.found_lab(self.url)
        self.passwords = []

    def superuser(self, statement):
        url = f"host={self.server.folder} port={self.server.port} user=postgres dbname=postgres"
        with psycopg.connect(url, autocommit=True) as connection:
            return connection.execute(statement)

    def init(self, state):
        return ["lab", "init", "--url", self.url.replace(":x@", "@"), "--state-dir", str(state)]

    def token(self, name="lab2", **others):
        token, _ = membership.new_token(self.url, name, "1.0", 1, BY, **others)
        return token

    def join(self, token, release="1.0", protocol=1):
        membership.join(token, release, protocol, self.passwords.append)
        return membership.with_password(token.url, self.passwords[-1])

    def rows(self, query):
        with psycopg.connect(self.url) as connection:
            return connection.execute(query).fetchall()

    def execute(self, *statements):
        with psycopg.connect(self.url) as connection:
            for each in statements:
                connection.execute(each)


@pytest.fixture
def lab(server):
    return Lab(server)


def test_a_token_is_good_once_and_its_host_logs_in_with_a_password_of_its_own(lab, tmp_path):
    token = HostToken.parse(lab.token().text())
    url = lab.join(token)
    assert token.password not in url
    assert "farm:x" not in token.url
    with pytest.raises(
        NotAllowedError, match="lab2 has joined with it, a later token has replaced it, or it was taken back"
    ):
        lab.join(token)
    passfile = tmp_path / "pass"
    passfile.write_text(f"*:*:*:*:{lab.passwords[0]}\n")
    passfile.chmod(0o600)
    url = membership.with_passfile(token.url, str(passfile))
    assert lab.passwords[0] not in url
    Store.open(url, "lab2", role=StoreRole.HOST).close()
    assert lab.rows("SELECT name, version, role, beat_at FROM host") == [
        ("lab2", "1.0", f"farm_{lab.id[:8]}_lab2", None)
    ]
    assert lab.rows('SELECT kind, subject, "user" FROM audit') == [("host.token", "lab2", "ann")]


def test_a_lab_that_has_hosts_is_joined_and_not_begun_anew(lab, tmp_path):
    lab.join(lab.token())
    said = CliRunner().invoke(app, lab.init(tmp_path), env={"PGPASSWORD": "x"})
    assert "the lab has hosts: lab2; to join it, on one of them: farm host token " in said.output
    assert "[store]" not in said.output


def test_no_password_of_the_configuration_is_printed(lab, tmp_path):
    lab.join(lab.token())
    file = tmp_path / "farm.toml"
    file.write_text(f'[store]\nurl = "{lab.url}"\n[lab]\nhost = "lab1"\nhead = "apart"\n')
    said = CliRunner().invoke(app, ["lab", "init", "--config", str(file), "--state-dir", str(tmp_path), "--json"])
    assert json.loads(said.output)["url"] == lab.url.replace(":x@", ":***@")


def refused(url, *statements):
    """Each is denied, as the role of the URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        for each in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(each)


def test_a_host_reads_and_writes_rows_and_can_do_nothing_else(lab):
    """A trigger on `host` ran as whoever wrote there: it made a role that ran programs as the server's user."""
    url = lab.join(lab.token())
    own, group = f"farm_{lab.id[:8]}_lab2", f"farm_{lab.id[:8]}"
    refused(
        url, *TRIGGERS, *RIGHTS, "CREATE SCHEMA later", "CREATE ROLE mine",
        "CREATE FUNCTION later() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        f"CREATE OR REPLACE FUNCTION {SETTLE}(verifier text) RETURNS void LANGUAGE sql AS 'SELECT'",
        f"ALTER FUNCTION {SETTLE}(text) RESET search_path", "SET ROLE farm",
        f"GRANT pg_execute_server_program TO {own}",
        f"ALTER ROLE {own} CREATEROLE", f"ALTER ROLE {own} VALID UNTIL 'infinity'", "ALTER ROLE farm PASSWORD 'mine'",
        "COPY audit FROM PROGRAM 'id'", "COPY audit TO '/tmp/audit'", "SELECT pg_read_file('postgresql.conf')",
    )  # fmt: skip
    assert lab.rows(OWNERS) == [("farm",)]
    assert lab.rows(
        "SELECT a.grantee::regrole::text, string_agg(DISTINCT privilege_type, ' ' ORDER BY privilege_type) "
        "FROM pg_class, aclexplode(relacl) a WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' "
        "AND a.grantee <> relowner GROUP BY 1"
    ) == [(group, "DELETE INSERT SELECT UPDATE")]
    assert lab.rows(
        "SELECT proname, prosecdef, proconfig FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
    ) == [("farm_host_joined", True, ["search_path=pg_catalog, pg_temp"])]
    with pytest.raises(NotAllowedError, match="may not make roles"):
        membership.new_token(url, "lab3", "1.0", 1, BY)


def test_the_first_host_gets_a_login_of_its_own_once(lab, tmp_path):
    order, environment = [*lab.init(tmp_path), "--json"], {"PGPASSWORD": "x", "FARM_LAB__HOST": "lab1"}
    first, again = (json.loads(CliRunner().invoke(app, order, env=environment).output) for _ in range(2))
    assert first == again
    assert first["url"].startswith(f"postgresql://farm_{lab.id[:8]}_lab1@")
    (passfile,) = (tmp_path / "keys").iterdir()
    assert passfile.stat().st_mode & 0o777 == 0o600
    refused(first["url"], *TRIGGERS, "CREATE ROLE mine")
    assert ROLE not in [each.check for each in look_at_server(first["url"])]
    assert ROLE in [each.check for each in look_at_server(lab.url)]
    Store.open(first["url"], role=StoreRole.HEAD).close()
    Store.open(first["url"], "lab1", role=StoreRole.HOST).close()
    with pytest.raises(UserError, match="has a password already, and not here"):
        membership.first_login(lab.url, "lab1", lab.passwords.append, kept=False)


@pytest.fixture
def older(lab):
    """The URL of host lab2 in a lab of an earlier release: all acted as the group, which owned the tables."""
    url, group = lab.join(lab.token()), f"farm_{lab.id[:8]}"
    lab.execute(
        f"GRANT {group} TO farm", f"GRANT CREATE ON SCHEMA public TO {group}",
        *(f'ALTER TABLE "{table}" OWNER TO {group}' for table in metadata.tables),
        *(f"ALTER ROLE {role} IN DATABASE {lab.name} SET role = {group}" for role in ("farm", f"{group}_lab2")),
    )  # fmt: skip
    return url


@pytest.mark.parametrize("order", ["init", "token", "remove"])
def test_an_older_lab_is_the_administrators_after_the_next_order(lab, older, order):
    with psycopg.connect(older, autocommit=True) as running:
        running.execute("GRANT TRIGGER ON host TO PUBLIC")
        match order:
            case "init":
                assert membership.found_lab(lab.url) == (lab.id, ("lab2",))
            case "token":
                lab.token("lab3")
            case "remove":
                lab.execute("INSERT INTO host (name, protocol) VALUES ('lab3', 1)")
                membership.remove(lab.url, "lab3", BY)
        running.execute("UPDATE host SET drained = ''")
        assert running.execute("SELECT nextval('job_seq_seq')").fetchone()
    refused(older, *TRIGGERS, *RIGHTS)
    assert lab.rows(OWNERS) == [("farm",)]


@pytest.mark.parametrize(
    "code",
    [
        TRIGGERS[0],
        "CREATE RULE mine AS ON INSERT TO audit DO ALSO SELECT 1",
        "CREATE FUNCTION mine(varchar, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        "ALTER TABLE audit ADD CHECK (length(kind) > 0)",
        "ALTER TABLE audit ALTER kind SET DEFAULT lower('A')",
        "CREATE INDEX mine ON audit (lower(kind))",
        "ALTER TABLE meta RENAME TO mine; CREATE VIEW meta AS SELECT * FROM mine",
        "CREATE TABLE mine () INHERITS (audit)",
        "CREATE POLICY mine ON host USING (true)",
        "CREATE DOMAIN mine AS text",
    ],
)
def test_code_that_a_host_of_an_older_lab_left_is_refused_before_it_runs(lab, older, code):
    with psycopg.connect(older, autocommit=True) as host:
        host.execute(code)
    for order in (lab.token, lambda: membership.found_lab(lab.url), lambda: membership.remove(lab.url, "lab2", BY)):
        with raises_code(Code.DATABASE_UNUSABLE, match="runs code that is not farm's"):
            order()


def test_the_roles_of_another_lab_are_not_changed(lab):
    """A host writes the rows of `meta`: with another lab's id an order would change that lab's roles."""
    other, url = Lab(lab.server), lab.join(lab.token())
    with psycopg.connect(url) as host:
        host.execute("UPDATE meta SET value = %s WHERE name = 'lab'", (int(other.id, 16),))
    with raises_code(Code.DATABASE_UNUSABLE, match="belongs to another lab"):
        lab.token("lab3")


def test_a_later_token_for_the_same_host_makes_the_earlier_one_void(lab):
    first, second = lab.token(), lab.token()
    with pytest.raises(NotAllowedError, match="does not take this token"):
        lab.join(first)
    lab.join(second)
    with pytest.raises(UserError, match="there is a host lab2 in the lab"):
        lab.token()


def test_a_refused_token_changes_nothing(lab):
    token = lab.token()
    other = Lab(lab.server)
    refused = (
        (replace(token, release="2.0"), UserError, "the lab 2.0"),
        (replace(token, protocol=2), UserError, "protocol 2"),
        (replace(token, lab=other.id), UserError, f"the database is of lab {lab.id}"),
        (replace(token, url=token.url.replace("127.0.0.1", "127.0.0.2")), HostError, "cannot use the database"),
    )
    for wrong, error, said in refused:
        with pytest.raises(error, match=said):
            lab.join(wrong)
    role = f"farm_{lab.id[:8]}_lab2"
    with psycopg.connect(lab.url) as connection:
        connection.execute(f"ALTER ROLE {role} VALID UNTIL '2020-01-01'")
    with pytest.raises(NotAllowedError, match="does not take this token"):
        lab.join(token)
    with psycopg.connect(lab.url) as connection:
        connection.execute(f"ALTER ROLE {role} VALID UNTIL 'infinity'")
    with pytest.raises(NotAllowedError, match="expired"):
        lab.join(replace(token, expires_s=1.0))
    assert lab.passwords == []
    lab.join(token)


def test_a_password_that_cannot_be_kept_leaves_the_token_good(lab):
    token = lab.token()

    def full(_):
        raise HostError("no room")

    with pytest.raises(HostError, match="no room"):
        membership.join(token, "1.0", 1, full)
    lab.join(token)


def test_a_removed_host_is_cut_off_and_its_name_is_free(lab):
    token = lab.token()
    url = lab.join(token)
    connection = psycopg.connect(url)
    removed = membership.remove(lab.url, "lab2", BY)
    assert (removed.had_role, removed.connections) == (True, 1)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    with pytest.raises(UserError, match="is being removed"):
        lab.token()
    with pytest.raises(UserError, match="there is no host 'lab2'") as raised:
        membership.remove(lab.url, "lab2", BY)
    assert raised.value.hint == "farm host list"
    with psycopg.connect(lab.url) as owner:  # as the head does
        owner.execute("DELETE FROM host")
    lab.join(lab.token())


def test_a_host_has_its_rights_until_its_connections_have_ended(lab, monkeypatch):
    """A daemon takes a denied statement for a bug of farm, and ends."""
    url, drop = lab.join(lab.token()), LabRoles.drop
    with psycopg.connect(url, autocommit=True) as host:

        def drop_later(*arguments):
            host.execute("SELECT * FROM meta")
            return drop(*arguments)

        monkeypatch.setattr(LabRoles, "drop", drop_later)
        assert membership.remove(lab.url, "lab2", BY).connections == 1


def test_a_host_that_lost_its_rights_has_no_database_for_now(lab):
    with closing(Standby(lab.join(lab.token()))) as there:
        lab.execute(f"REVOKE farm_{lab.id[:8]} FROM farm_{lab.id[:8]}_lab2")
        with raises_code(Code.DATABASE_UNUSABLE) as caught:
            there.rest_s()
        assert outage_of(caught.value) is not None


@pytest.mark.parametrize(
    ("silent", "drained", "removable"), [("0", "", False), ("0", "ann drains lab2", True), ("60", "", True)]
)
def test_a_host_that_runs_is_drained_before_it_is_removed(lab, silent, drained, removable):
    lab.join(lab.token())
    with psycopg.connect(lab.url) as owner:
        beat = f"extract(epoch FROM clock_timestamp()) - {silent}"
        owner.execute(f"UPDATE host SET beat_at = {beat}, drained = '{drained}'")
    if not removable:
        with pytest.raises(UserError, match=r"host lab2 stays in the lab: it runs \(its latest beat is \d") as raised:
            membership.remove(lab.url, "lab2", BY)
        assert raised.value.hint == (
            "first farm host drain lab2, or there: systemctl stop farm; --force removes it as it is"
        )
        assert lab.rows("SELECT removed_at FROM host") == [(None,)]
    assert membership.remove(lab.url, "lab2", BY, force=not removable).had_role


def test_the_host_with_the_only_head_is_not_removed(lab):
    url = lab.join(lab.token())
    with closing(Standby(url)) as there:
        there.rest_s()
        with pytest.raises(UserError, match="host lab2 stays in the lab: no farm head of the lab runs but there") as it:
            membership.remove(lab.url, "lab2", BY)
        assert it.value.hint == "first start a farm head at another host; --force removes it as it is"
        with closing(Standby(lab.url)) as another:
            another.rest_s()
            assert membership.remove(lab.url, "lab2", BY).connections == 1


def test_a_token_that_nobody_used_is_taken_back(lab):
    token = lab.token()
    assert membership.remove(lab.url, "lab2", BY).connections == 0
    with pytest.raises(NotAllowedError, match="does not take this token"):
        lab.join(token)


def test_a_removed_host_reads_why_its_database_is_away(lab):
    url = lab.join(lab.token())
    with psycopg.connect(lab.url) as connection:
        connection.execute(f"ALTER ROLE farm_{lab.id[:8]}_lab2 NOLOGIN")
    (finding,) = look_at_server(url)
    assert "removed from the lab" in finding.detail


def test_a_removed_host_with_the_owners_role_reads_that_it_was_removed(lab):
    lab.join(lab.token())
    assert "lab hosts" not in [each.check for each in look_at_server(lab.url, "lab2")]
    membership.remove(lab.url, "lab2", BY)
    for _ in ("the head ends what it had", "it has no row"):
        found = look_at_server(lab.url, "lab2")[-1]
        assert (found.check, found.verdict) == ("lab hosts", FAIL)
        assert found.detail.startswith("lab2 is no host of this lab: it was removed")
        assert "farm host join" in found.fix
        with psycopg.connect(lab.url) as owner:
            owner.execute("DELETE FROM host")


def test_a_host_without_a_name_gets_one_before_others_join(lab):
    with psycopg.connect(lab.url) as connection:
        connection.execute("INSERT INTO device (serial, name, adopted) VALUES ('s', 'n', 1)")
    with pytest.raises(UserError, match="has no name yet"):
        lab.token()


@pytest.mark.parametrize("order", ["token", "removal"])
def test_a_database_without_a_lab_stays_empty(lab, order):
    name = lab.url.rpartition("/")[2]
    lab.superuser(f"CREATE DATABASE empty_{name} OWNER farm")
    url = f"postgresql://farm:x@127.0.0.1:{lab.server.port}/empty_{name}"
    with pytest.raises(HostError, match="there is no lab in") as raised:
        membership.remove(url, "lab2", BY) if order == "removal" else membership.new_token(url, "lab2", "1.0", 1, BY)
    assert raised.value.hint == "on its first host: farm lab init"
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_role_that_may_make_no_roles_is_told_so(lab):
    lab.token()
    name = lab.url.rpartition("/")[2]
    with psycopg.connect(lab.url) as connection:
        connection.execute(f"GRANT farm_{lab.id[:8]} TO plain")
    with pytest.raises(NotAllowedError, match="plain may not make roles"):
        membership.new_token(f"postgresql://plain:x@127.0.0.1:{lab.server.port}/{name}", "lab3", "1.0", 1, BY)


def test_the_url_for_another_host_has_nothing_of_this_one(lab):
    there, far = membership.new_token(
        lab.url, "lab2", "1.0", 1, BY, address="postgresql://me:secret@db1,db2:5433/farm?passfile=/x&sslmode=require"
    )
    assert far
    assert "secret" not in there.url
    assert "passfile" not in there.url
    assert "sslmode=require" in there.url
    assert there.url.startswith(f"postgresql://farm_{lab.id[:8]}_lab2@")


def test_a_dump_with_its_roles_is_a_lab_on_another_server(lab):
    """As docs/many-hosts.md has it: a dump holds no roles, and without --create nothing that they have set."""
    url, folder = lab.join(lab.token()), lab.server.folder
    name = url.partition("?")[0].rpartition("/")[2]
    lab.server.run("pg_dump", "--format=custom", f"--file={folder}/farm.dump", lab.server.url_of(name))
    lab.server.run("pg_dumpall", "--roles-only", f"--file={folder}/farm.roles", "-d", lab.server.url_of("postgres"))
    with postgres.guarded_server() as other:
        other.run("psql", "--quiet", f"--file={folder}/farm.roles", other.url_of("postgres"))
        other.run("pg_restore", "--create", "--exit-on-error", "-d", other.url_of("postgres"), folder / "farm.dump")
        there = url.replace(f":{lab.server.port}/", f":{other.port}/")
        Store.open(there, "lab2", role=StoreRole.HOST).close()
        with psycopg.connect(there) as connection:
            assert connection.execute("SELECT name FROM host").fetchall() == [("lab2",)]
