"""Certificates that were taken back, as OpenSSL sees them."""

import ssl

import pytest

from farm.builders.authority import Authority, new_key_pair

pytest.importorskip("distributed")
from farm.builders.tls import HostSecurity


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


def test_each_of_several_builders_removed_within_a_second_is_refused_from_then_on(tmp_path):
    authority = Authority(tmp_path / "builders")
    security, builders = HostSecurity(authority.folder), {}
    host = security.get_listen_args("scheduler")["ssl_context"]
    for name in ("first", "second", "stays"):
        key, public = new_key_pair()
        (tmp_path / name).write_bytes(key + authority.exchange(authority.new_token(0.0), name, public, 1.0))
        builders[name] = ssl.create_default_context(cafile=str(authority.path("ca.pem")))
        builders[name].check_hostname = False
        builders[name].load_cert_chain(tmp_path / name)
    admitted = ["first", "second", "stays"]
    for removed in ("first", "second"):
        assert [name for name in builders if is_admitted(host, builders[name])] == admitted
        authority.remove(removed)
        security.read_crl()
        admitted.remove(removed)
    assert [name for name in builders if is_admitted(host, builders[name])] == ["stays"]
