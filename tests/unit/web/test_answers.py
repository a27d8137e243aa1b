"""What every answer of the page has, and what is refused before there is a page."""

import re
from typing import Any

import pytest

from farm.common.errors import HostError, NotAllowedError, PhoneError
from farm.config import WebConfig
from tests.support.web_desk import Desk, page, text_of


@pytest.mark.parametrize("path", ["/", "/sign-in", "/nowhere", "/events-of-nobody", "/metrics", "/favicon.ico"])
async def test_every_answer_has_the_headers(path: str) -> None:
    async with page() as farm:
        answer = await farm.client.get(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == ("public, max-age=86400" if path == "/favicon.ico" else "no-store")


async def test_the_scheme_is_not_told_the_server() -> None:
    async with page() as farm:
        assert "server" not in (await farm.client.get("/")).headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9191", "127.0.0.1.evil.example", "", "a b"])
async def test_other_names_are_refused(host: str) -> None:
    async with page() as farm:
        answer = await farm.client.get("/", headers={"host": host})
        assert answer.status_code == 421
        assert "allow_hosts" in answer.text
        assert not host or host not in answer.text
        assert farm.desk.asked == []


async def test_allowed_names_are_served() -> None:
    async with page(config=WebConfig(allow_hosts=("farm.lab",))) as farm:
        assert (await farm.client.get("/", headers={"host": "farm.lab:8080"})).status_code == 200
        assert (await farm.client.get("/", headers={"host": "localhost:1"})).status_code == 200


async def test_files_are_kept_by_browsers_for_ever_and_nothing_else_is_served() -> None:
    async with page() as farm:
        text = (await farm.client.get("/")).text
        (address,) = re.findall(r'href="(/static/[^"]*app\.css)"', text)
        answer = await farm.client.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        for other in ("/static/000000000000/app.css", "/static/x/../app.py", "/static/x/%2e%2e/app.py", "/static/x/y"):
            assert (await farm.client.get(other)).status_code == 404


async def test_what_is_too_large_is_refused() -> None:
    async with page() as farm:
        assert (await farm.client.get("/?text=" + "x" * 5000)).status_code == 414
        assert (await farm.client.get("/?text=" + "x" * 300)).status_code == 400
        assert (await farm.client.post("/sign-in", content=b"x" * 70_000)).status_code == 413

        form = {"content-type": "application/x-www-form-urlencoded"}

        async def endless() -> Any:
            for _ in range(100):
                yield b"token=" + b"x" * 1000

        assert (await farm.client.post("/sign-in", content=endless(), headers=form)).status_code == 413
        many = "&".join(f"f{number}=1" for number in range(300))
        assert (await farm.client.post("/sign-in", content=many, headers=form)).status_code == 400
        assert farm.desk.asked == []


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999999999", "1e3"])
async def test_a_length_that_is_none_is_refused(length: str) -> None:
    async with page() as farm:
        answer = await farm.client.post("/sign-in", headers={"content-length": length}, content=b"")
        assert answer.status_code == 413


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotAllowedError("no", hint="ask"), 403),
        (PhoneError("no", hint="ask"), 502),
        (HostError("no", hint="ask"), 503),
    ],
)
async def test_an_error_is_a_page_with_a_sentence_and_what_to_do(error: Exception, code: int) -> None:
    def fails() -> None:
        raise error

    async with page(Desk(status=fails)) as farm:
        answer = await farm.client.get("/")
    assert answer.status_code == code
    assert "no ask" in text_of(answer.text)


async def test_a_bug_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ZeroDivisionError("a secret detail")

    async with page(Desk(status=fails)) as farm:
        answer = await farm.client.get("/")
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    assert "secret detail" not in answer.text
    assert "mistake of the farm" in answer.text
    assert "ZeroDivisionError" in caplog.text  # the daemon's log has it


async def test_no_such_page_and_no_such_method() -> None:
    async with page() as farm:
        assert (await farm.client.get("/nowhere")).status_code == 404
        await farm.sign_in()
        answer = await farm.client.post("/", data={"csrf": farm.session.csrf})
        assert answer.status_code == 405


async def test_a_form_that_breaks_off_is_no_mistake_of_the_farm(caplog: pytest.LogCaptureFixture) -> None:
    told = []

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/sign-in", "raw_path": b"/sign-in",
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        "scheme": "http", "root_path": "",
    }  # fmt: skip
    async with page() as farm:
        await farm.app(scope, gone, send)
    assert told == []
    assert caplog.text == ""


async def test_addresses_that_are_none_are_no_mistake_of_the_farm(caplog: pytest.LogCaptureFixture) -> None:
    async with page() as farm:
        answer = await farm.client.post("/sign-in", headers={"origin": "http://["}, data={"token": "x"})
        assert answer.status_code == 403
        assert "content-security-policy" in answer.headers
        assert (await farm.client.get("/sign-in?to=http://[")).status_code == 200
    assert caplog.text == ""


async def test_too_many_open_pages_are_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farm.web.stream.MOST_READERS", 0)
    async with page() as farm:
        answer = await farm.client.get("/events")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "10"
