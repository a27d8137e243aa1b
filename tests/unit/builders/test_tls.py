"""The certificates that a host lets in, as OpenSSL sees them."""

import asyncio
import ssl

import pytest

from farm.lab.identity import open_identity
from farm.lab.tls import client_context

pytest.importorskip("distributed")
from farm.builders import tls
from farm.builders.tls import GuardedBackend, HostSecurity, LabSecurity


def is_admitted(host, builder):
    """Whether the host ends a handshake with a session."""
    to_host, to_builder = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = host.wrap_bio(to_host, to_builder, server_side=True), builder.wrap_bio(to_builder, to_host)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    client.do_handshake()
    try:
        server.do_handshake()
    except ssl.SSLCertVerificationError:
        return False
    return True


async def test_a_token_never_leads_to_dask(tmp_path, numbers):
    numbers(tls, HANDSHAKE_S=0.2)
    own, token = (open_identity(tmp_path / name, name) for name in ("host", "token"))
    security, served = HostSecurity(own, None), []
    security.use({}, {"token": token.certificate})
    port = GuardedBackend().get_listener("127.0.0.1:0", served.append, True, **security.get_listen_args("scheduler"))
    await port.start()
    context = client_context(token, [own.certificate])
    for revoked in (False, True):
        if revoked:
            security.tokens = {}  # between the handshake and what follows
        reader, writer = await asyncio.open_connection("127.0.0.1", port.get_host_port()[1], ssl=context)
        assert (await reader.read()).count(b"\n") == (0 if revoked else 1)  # greeted, and cut when it says nothing
        writer.close()
    port.stop()
    assert served == []


def test_a_host_lets_in_the_members_and_tokens_of_the_moment_whatever_a_damaged_row_says(tmp_path):
    own = open_identity(tmp_path / "host", "farm")
    host, names = HostSecurity(own, None), ("first", "second", "token")
    identities = {name: open_identity(tmp_path / name, name) for name in names}
    builders = {
        name: LabSecurity(each, [own.certificate]).get_connection_args("worker")["ssl_context"]
        for name, each in identities.items()
    }
    certificates = {name: each.certificate for name, each in identities.items()}

    def admitted(members, token):
        members = {name: certificates[name] for name in members}
        host.use(members | {"damaged": "garbage"}, {"token": certificates[token]})
        listening = host.get_listen_args("scheduler")["ssl_context"]
        return [name for name in names if is_admitted(listening, builders[name])]

    assert admitted(["first", "second"], "token") == ["first", "second", "token"]
    assert admitted(["second"], "second") == ["second"]
    assert admitted([], "first") == ["first"]
