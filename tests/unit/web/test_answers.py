"""What every answer of the page has, and what is refused before there is a page."""

import re

import pytest

from farm.common.errors import HostError, NotAllowedError, PhoneError
from farm.config import WebConfig
from tests.support.web_desk import Desk, Page, text_of

FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("path", ["/", "/sign-in", "/nowhere", "/events-of-nobody", "/metrics", "/favicon.ico"])
async def test_every_answer_has_the_headers_and_none_names_the_server(path):
    headers = (await Page().get(path)).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert "server" not in headers
    assert {name: headers[name] for name in headers if name.startswith(("x-", "ref", "cross", "cache"))} == {
        "x-content-type-options": "nosniff", "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
        "x-frame-options": "DENY",
        "cache-control": "public, max-age=86400" if path == "/favicon.ico" else "no-store",
    }  # fmt: skip


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9191", "127.0.0.1.evil.example", "", "a b"])
async def test_other_names_are_refused(host):
    farm = Page()
    answer = await farm.get("/", host=host)
    assert (answer.status_code, farm.desk.asked) == (421, [])
    assert "allow_hosts" in answer.text
    assert not host or host not in answer.text


@pytest.mark.parametrize("host", ["farm.lab:8080", "localhost:1"])
async def test_allowed_names_are_served(host):
    assert (await Page(config=WebConfig(allow_hosts=("farm.lab",))).get("/", host=host)).status_code == 200


async def test_files_are_kept_by_browsers_for_ever_and_nothing_else_is_served():
    farm = Page()
    (address,) = re.findall(r'href="(/static/[^"]*app\.css)"', await farm.html("/"))
    assert "immutable" in (await farm.get(address)).headers["cache-control"]
    for other in ("/static/000000000000/app.css", "/static/x/../app.py", "/static/x/%2e%2e/app.py", "/static/x/y"):
        assert (await farm.get(other)).status_code == 404


async def endless():
    for _ in range(100):
        yield b"token=" + b"x" * 1000


@pytest.mark.parametrize(
    ("method", "path", "more", "status"),
    [
        ("GET", "/?text=" + "x" * 5000, {}, 414),
        ("GET", "/?text=" + "x" * 300, {}, 400),
        ("POST", "/sign-in", {"content": b"x" * 70_000}, 413),
        ("POST", "/sign-in", {"content": endless(), "headers": FORM}, 413),
        ("POST", "/sign-in", {"content": "&".join(f"f{n}=1" for n in range(300)), "headers": FORM}, 400),
        *(
            ("POST", "/sign-in", {"content": b"", "headers": {"content-length": length}}, 413)
            for length in ("-1", "x", "99999999999999999999", "1e3")
        ),
        ("GET", "/nowhere", {}, 404),
        ("POST", "/sign-in", {"data": {"token": "x"}, "headers": {"origin": "http://["}}, 403),
    ],
)
async def test_what_is_too_large_or_no_request_of_ours_is_refused(method, path, more, status, caplog):
    farm = Page()
    answer = await farm.client.request(method, path, **more)
    assert (answer.status_code, farm.desk.asked) == (status, [])
    assert "content-security-policy" in answer.headers
    assert caplog.text == ""  # no mistake of the farm


async def test_an_address_that_is_none_and_a_method_that_is_none():
    farm = Page()
    await farm.html("/sign-in?to=http://[")
    await farm.sign_in()
    assert (await farm.post("/")).status_code == 405


@pytest.mark.parametrize(("error", "code"), [(NotAllowedError, 403), (PhoneError, 502), (HostError, 503)])
async def test_an_error_is_a_page_with_a_sentence_and_what_to_do(error, code):
    def fails():
        raise error("no", hint="ask")

    answer = await Page(Desk(status=fails)).get("/")
    assert (answer.status_code, "no ask" in text_of(answer.text)) == (code, True)


async def test_a_bug_shows_no_traceback(caplog):
    def fails():
        raise ZeroDivisionError("a secret detail")

    answer = await Page(Desk(status=fails)).get("/")
    assert (answer.status_code, "mistake of the farm" in answer.text) == (500, True)
    assert "Traceback" not in answer.text
    assert "secret detail" not in answer.text
    assert "ZeroDivisionError" in caplog.text  # the daemon's log has it


async def test_a_form_that_breaks_off_is_no_mistake_of_the_farm(caplog):
    told = []

    async def gone():
        return {"type": "http.disconnect"}

    async def send(message):
        told.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", FORM["content-type"].encode())]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/sign-in", "raw_path": b"/sign-in",
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        "scheme": "http", "root_path": "",
    }  # fmt: skip
    await Page().app(scope, gone, send)
    assert (told, caplog.text) == ([], "")


async def test_too_many_open_pages_are_told_to_wait(monkeypatch):
    monkeypatch.setattr("farm.web.stream.MAX_READERS", 0)
    answer = await Page().get("/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
