"""The farm's certificate authority: tokens are exchanged once, and what is kept outlives the process."""

import errno
import os
import stat

import pytest
from cryptography import x509

from farm.builders.authority import Authority, new_key_pair
from farm.builders.token_policy import LIFE_S
from farm.common.errors import UserError

_, PUBLIC = new_key_pair()


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "builders")


def test_a_token_is_exchanged_once_for_a_certificate_of_this_authority(authority):
    secret = authority.new_token(0.0)
    certificate = x509.load_pem_x509_certificate(authority.exchange(secret, "ci-3", PUBLIC, 1.0))
    own = x509.load_pem_x509_certificate(authority.path("ca.pem").read_bytes())
    certificate.verify_directly_issued_by(own)
    with pytest.raises(UserError, match="used already, by ci-3"):
        Authority(authority.folder).exchange(secret, "ci-4", PUBLIC, 2.0)  # by another process, too


def test_expired_and_foreign_tokens_and_taken_names_are_refused(authority, tmp_path):
    old, good, again = (authority.new_token(0.0) for _ in range(3))
    with pytest.raises(UserError, match="expired"):
        authority.exchange(old, "ci-3", PUBLIC, LIFE_S)
    with pytest.raises(UserError, match="this farm did not make this token"):
        Authority(tmp_path / "other").exchange(good, "ci-3", PUBLIC, 1.0)
    with pytest.raises(UserError, match="key cannot be read"):
        authority.exchange(good, "ci-3", b"garbage", 1.0)
    authority.exchange(good, "ci-3", PUBLIC, 1.0)
    with pytest.raises(UserError, match="a builder 'ci-3' already"):
        authority.exchange(again, "ci-3", PUBLIC, 1.0)
    authority.remove("ci-3")
    authority.exchange(again, "ci-3", PUBLIC, 1.0)


def test_a_removed_builder_stands_on_the_list_of_those_taken_back(authority):
    made = x509.load_pem_x509_certificate(authority.exchange(authority.new_token(0.0), "ci-3", PUBLIC, 1.0))
    authority.remove("ci-3")
    revoked = x509.load_pem_x509_crl(authority.path("crl.pem").read_bytes())
    assert revoked.get_revoked_certificate_by_serial_number(made.serial_number) is not None
    with pytest.raises(UserError, match="there is no builder 'ci-3'"):
        authority.remove("ci-3")


def test_nobody_else_reads_the_keys(authority):
    for path in (authority.folder, *authority.folder.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("name", ["ca.key", "ca.pem", "members.json"])
def test_a_damaged_file_is_named_with_what_to_do(authority, name):
    authority.save()
    authority.path(name).write_bytes(authority.path(name).read_bytes()[:20])
    with pytest.raises(ValueError) as caught:
        Authority(authority.folder)
    assert str(caught.value).startswith(f"{authority.path(name)} is damaged; ")
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_each_file_as_it_was(authority, monkeypatch):
    authority.new_token(0.0)
    before = {path.name: path.read_bytes() for path in authority.folder.iterdir()}

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        authority.new_token(0.0)
    with pytest.raises(OSError, match="No space left"):
        Authority(authority.folder)
    assert {path.name: path.read_bytes() for path in authority.folder.iterdir()} == before
