"""The web page of a real daemon with a virtual phone: every page, a token's whole life, hints, metrics."""

import json
import re

import httpx
import pytest

from tests.support.waiting import HANG_S
from tests.support.whole_farm import answer, until, until_ready

pytestmark = pytest.mark.farm("oneplus-12", config="[probe]\nevery_s = 1\n")


@pytest.fixture
def browser(farm):
    """Without scripts."""
    with httpx.Client(base_url=farm.status()["web"], follow_redirects=True, timeout=HANG_S) as client:
        yield client


def test_every_page_reads_without_a_token_and_without_scripts(farm, browser):
    (device,) = farm.status()["devices"]
    name = device["name"]
    until(lambda: farm.client.call("device.readings", device=name)["columns"])
    pages = {
        "/": name,
        f"/devices/{name}": "Readings of the last hour",
        "/leases": "Leases",
        "/bundles": "virtual",
    }
    for path, words in pages.items():
        page = browser.get(path)
        assert page.status_code == 200, (path, page.text)
        assert words in page.text, path
        part = browser.get(path, headers={"hx-request": "true"}).text
        assert ("<html" in part) is (path == "/bundles"), path
    shown = browser.get(f"/devices/{name}").text
    assert "temperature TEMP" in shown
    assert device["bundle"][:12] in shown
    readings = browser.get(f"/devices/{name}/readings").json()
    assert {"temperature", "battery", "clock"} <= {column["quantity"] for column in readings["columns"]}
    assert all(len(column["values"]) == len(readings["at"]) for column in readings["columns"])
    assert f"Web page {farm.status()['web']}" in farm.farm("status").stdout


def test_a_token_from_its_making_to_its_revoking(farm, browser):
    name = farm.status()["devices"][0]["name"]
    token = answer(farm.farm("auth", "new", "ann", "--role", "operator", "--web", "--json"))["token"]
    page = browser.post("/sign-in", data={"token": token, "to": f"/devices/{name}"})
    assert "You are signed in as ann (operator)." in page.text
    (csrf,) = set(re.findall(r'name="csrf" value="([^"]+)"', page.text))

    page = browser.post(f"/devices/{name}/service", data={"csrf": csrf, "service": "draining"})
    assert f"{name} is draining." in page.text
    assert farm.status()["devices"][0]["state"] == "draining"
    page = browser.post(f"/devices/{name}/quarantine", data={"csrf": csrf, "reason": "<b>it smokes</b>"})
    assert "&lt;b&gt;it smokes&lt;/b&gt; (by ann)" in page.text
    assert "<b>it smokes" not in page.text
    page = browser.post(f"/devices/{name}/service", data={"csrf": csrf, "service": "in"})
    assert "Its quarantine is over" in page.text
    until_ready(farm)

    audited = answer(farm.farm("auth", "audit", "--json"))["rows"]
    rows = [row for row in audited if row["user"] == "ann"]
    assert {row["kind"] for row in rows} == {"auth.sign_in", "device.service", "device.quarantine"}
    assert all(row["origin"] == "web token ann from 127.0.0.1" for row in rows)

    answer(farm.farm("auth", "revoke", "ann", "--json"))
    page = browser.post(f"/devices/{name}/service", data={"csrf": csrf, "service": "draining"})
    assert page.status_code == 401
    assert farm.status()["devices"][0]["service"] == "in"
    assert browser.post("/sign-in", data={"token": token}).status_code == 403


def test_a_user_may_do_no_more_than_over_the_control_socket(farm, browser):
    name = farm.status()["devices"][0]["name"]
    token = answer(farm.farm("auth", "new", "bob", "--role", "user", "--web", "--json"))["token"]
    page = browser.post("/sign-in", data={"token": token, "to": "/"})
    (csrf,) = set(re.findall(r'name="csrf" value="([^"]+)"', page.text))
    page = browser.post(f"/devices/{name}/reboot", data={"csrf": csrf})
    assert page.status_code == 403
    assert "device.reboot needs the role operator" in page.text


def test_hints_come_as_things_happen_and_after_a_break(farm, browser):
    since = farm.status()["seq"]
    name = farm.status()["devices"][0]["name"]
    farm.client.call("device.quarantine", device=name, reason="a test")
    farm.client.call("device.service", device=name, service="in")
    until_ready(farm)

    def first(after):
        with browser.stream("GET", "/events", params={"since": after}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    return json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream ended")

    hint = first(since)
    assert isinstance(hint["seq"], int)
    assert hint["seq"] > since
    assert set(hint) <= {"seq", "at", "kind", "subject", "device"}
    assert first(hint["seq"])["seq"] != hint["seq"]


def test_metrics_are_served_beside_it(browser):
    page = browser.get("/metrics")
    assert page.status_code == 200
    assert "# TYPE farm_" in page.text
