"""`farm host` and `farm head`: what is refused before anything changes."""

import io
import sys

import pytest

from farm.cli.head import head
from farm.common.errors import UserError
from farm.store.host_token_policy import HostToken

LAB = "[lab]\nhost = 'a'\nhead = 'apart'\n"
TOKEN = HostToken("00ab" * 4, "lab2", "postgresql://farm_00ab00ab_lab2@db/farm", "secret", "0.0.1", 1, 1e12).text()


@pytest.mark.parametrize(
    ("config", "line", "said"),
    [
        ("", "host join", "the lab 0.0.1"),
        (f"[store]\nurl = 'postgresql://a@b/c'\n{LAB}", "host join", "has a database already"),
        ("[lab]\n", "host join --write", "has a [store] or [lab] already"),
        (None, "host join --write", "the lab 0.0.1"),  # the token's fault, and not that of the file
        (None, "host join", "cannot read"),
        (None, "host join --listen lab2", "--listen 'lab2' is no address"),
        (None, "host join --listen 127.0.0.1", "other hosts cannot dial 127.0.0.1"),
        (None, "lab create --listen 203.0.113.9", "other hosts cannot dial 203.0.113.9"),
    ],
)
def test_what_cannot_be_is_said_before_anything_changes(tmp_path, monkeypatch, farm, config, line, said):
    for name in ("FARM_CONFIG", "FARM_STORE__URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{TOKEN}\n"))
    file = tmp_path / "farm.toml"
    if config is not None:
        file.write_text(config)
    options = "" if "--listen" in line else f" --config {file}"
    assert said in farm(line + options).err
    assert [path.read_text() for path in tmp_path.iterdir()] == ([] if config is None else [config])


def test_without_a_server_there_is_no_head_apart(tmp_path, at_utc, monkeypatch):
    for name in ("FARM_CONFIG", "FARM_STORE__URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "farm.toml").write_text('[lab]\nhost = "lab1"\n')
    with pytest.raises(UserError, match="needs a database on a server") as caught:
        head(tmp_path / "farm.toml")
    assert "farm serve" in caught.value.hint
