"""Whoever comes from elsewhere: their key files, their sessions of the page."""

import re
from pathlib import Path

import httpx

from farm.cli.auth import key_file
from farm.simulation.virtual_farm import VirtualFarm

ELSEWHERE = '[control]\nlisten = "tcp://127.0.0.1:0"\n'


def signed_in(url, token):
    """A session of the page: its cookie and its csrf."""
    with httpx.Client(base_url=url) as browser:
        answer = browser.post("/sign-in", data={"token": token, "to": "/"})
        assert answer.status_code == 303, answer.text
        csrf = re.search(r'name="csrf" value="([^"]+)"', browser.get("/").text)
        assert csrf
        return browser.cookies["farm_session"], csrf[1]


def key_of(farm: VirtualFarm, name: str, role: str, folder: Path) -> Path:
    """A new account's key file."""
    path = folder / f"{name}.key"
    path.write_text(key_file(farm.client.call("auth.new", name=name, role=role)))
    path.chmod(0o600)
    return path
