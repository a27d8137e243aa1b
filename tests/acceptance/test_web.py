"""The web page of a real farm in real Chromium: live walls, jobs and plots, actions and who may not, keys, themes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from farm.simulation.virtual_farm import VirtualFarm
from tests.support.browser import CHROMIUM, DRAWN, NARROW, Watched, chromium, profile, sign_in, violations
from tests.support.tunable import dense_onnx
from tests.support.whole_farm import phones

pytestmark = [
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}"),
    pytest.mark.farm("oneplus-12", "galaxy-a55", places={"virtual-1": "1-4.1", "virtual-2": "2-1.3"}),
]

HELD = 60  # more than one page of jobs
READABLE = 4.5  # WCAG 2.2, 1.4.3: contrast of text
VISIBLE = 3.0  # 1.4.11: of signs and borders of fields
TOKENS = ("ink", "soft", "accent", "good", "busy", "warm", "warn", "bad", "off", "hold", "going", "poor")
PAGES = ("/", "/jobs", "/queue", "/leases", "/leases/calendar", "/bundles", "/history", "/records", "/sign-in")
# Refusals that were asked for, and hints whose answer was on its way when the reader left the page.
HARMLESS = ("status of 4", "htmx:afterRequest", "htmx:sendAbort")
Opens = Callable[..., Watched]
MODEL = "dense.onnx", dense_onnx()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def opens(farm: VirtualFarm, browser: Browser) -> Iterator[Opens]:
    """Opens profiles; afterwards nothing may have left the host, and no console complained."""
    opened: list[Any] = []

    def open_one(**options: Any) -> Watched:
        manager = profile(browser, farm.status()["web"], **options)
        opened.append((manager, manager.__enter__()))
        return opened[-1][1]

    yield open_one
    for manager, watched in opened:
        manager.__exit__(None, None, None)
        assert watched.strangers() == []
        assert [each for each in watched.complaints if not any(words in each for words in HARMLESS)] == []


@pytest.fixture(scope="module")
def held(whole: VirtualFarm) -> list[str]:
    """Jobs that stay as they are: shell lines of different words, the oldest first."""
    spec = {"kind": "shell", "on": "android", "hold": True}
    return [
        whole.client.call("job.submit", spec={**spec, "command": f"echo {('plum', 'pear')[n % 2]} {n}"})["jobs"][0][
            "id"
        ]
        for n in range(HELD)
    ]


@pytest.fixture(scope="module")
def benched(whole: VirtualFarm, model: Path) -> str:
    """A bench that is done."""
    done = whole.farm("bench", model, "--on", "soc=sm8650", "--repeat", "60", "--json")
    assert done.returncode == 0, done
    return next(row["id"] for row in whole.client.call("job.list", of_kind="bench", state=["done"])["jobs"])


def token(farm: VirtualFarm, name: str, role: str) -> str:
    done = farm.farm("auth", "new", name, "--role", role, "--web")
    assert done.returncode == 0, done
    return done.stdout.split()[0]


def shown_jobs(page: Page) -> list[str]:
    return page.locator("table.jobs a.row").all_inner_texts()


def spilt(page: Page) -> list[str]:
    """Parts that are wider than their card and cannot be scrolled to."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('.card')].filter((card) => card.scrollWidth > card.clientWidth + 1)
          .map((card) => card.getAttribute('aria-label') || card.outerHTML.slice(0, 80))"""
    )
    return found


# --- the fleet ----------------------------------------------------------------------------------------------------


def test_the_wall_follows_a_phone_that_is_unplugged_and_comes_back(farm: VirtualFarm, opens: Opens) -> None:
    phone = phones(farm)[1]
    name = phone.name
    page = opens().open("/")
    card = page.locator(f"[data-key='{name}']")
    expect(card).to_contain_text("ready")
    page.evaluate("window.sameDocument = true")
    farm.lab.unplug(phone.nickname)
    expect(card).not_to_contain_text("ready")
    farm.lab.plug(phone.nickname)
    expect(card).to_contain_text("ready", timeout=60_000)
    assert page.evaluate("window.sameDocument") is True
    card.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(name)
    expect(page.get_by_role("main")).to_contain_text("SM-A5560")


def test_a_device_s_readings_are_drawn_and_its_orders_are_followed_by_its_live_log(
    farm: VirtualFarm, opens: Opens
) -> None:
    name = phones(farm)[1].name
    page = sign_in(opens(), token(farm, "dora", "operator"), f"/devices/{name}")
    expect(page.locator("#plots canvas")).to_have_count(3, timeout=60_000)  # temperatures, battery, clocks
    span = page.get_by_role("button", name="6 hours")
    with page.expect_response(re.compile("readings.seconds=21600")):
        span.click()
    expect(span).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#plots canvas")).to_have_count(3)
    assert all(drawn > 500 and colours > 3 for drawn, colours in page.evaluate(DRAWN))
    assert spilt(page) == []
    said, state = page.get_by_role("status"), page.locator(".state.big")
    page.get_by_role("button", name="Drain").click()
    expect(said).to_contain_text(f"{name} is draining")
    expect(state).to_contain_text("draining")
    page.evaluate("window.sameDocument = true")
    assert farm.farm("device", "release", name).returncode == 0  # by another user, elsewhere
    newest = page.get_by_role("region", name="Live log").locator("li").first
    expect(newest).to_contain_text(f"put {name} back in service")
    expect(state).to_contain_text("ready")
    assert page.evaluate("window.sameDocument") is True
    page.get_by_text("Quarantine …").click()
    page.get_by_label("What is wrong with it").fill("its glass is broken")
    page.get_by_role("button", name=f"Quarantine {name}").click()
    expect(page.get_by_role("region", name="Quarantine")).to_contain_text("its glass is broken")
    page.get_by_role("button", name="Release").click()
    expect(said).to_contain_text("Its quarantine is over")
    expect(state).to_contain_text("ready", timeout=60_000)
    page.get_by_text("Power-cycle …").click()
    page.get_by_role("button", name=f"Power-cycle {name}").click()
    expect(said).to_contain_text(f"The power of {name} is cut for a moment")
    expect(state).to_contain_text("ready", timeout=60_000)


def test_who_holds_a_phone_and_who_waits_for_it(farm: VirtualFarm, opens: Opens) -> None:
    name = phones(farm)[1].name
    assert farm.farm("lease", "acquire", "--on", name, "--for", "20m").returncode == 0
    job = farm.client.call("job.submit", spec={"kind": "shell", "on": name, "command": "echo quince"})["jobs"][0]["id"]
    web = opens(viewport=NARROW)
    page = sign_in(web, token(farm, "lena", "operator"), "/queue")
    row = page.locator("tr").filter(has_text=job)
    expect(row).to_contain_text("within")  # the estimate
    row.get_by_text("Each phone").click()
    expect(row.locator(".why")).to_contain_text(f"{name}: held by")
    page = web.open("/leases")
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
    held = page.locator("tr").filter(has_text=name)
    top = {part: box["y"] for part in ("th", ".what", ".orders") if (box := held.locator(part).bounding_box())}
    assert top["th"] < top[".what"] < top[".orders"]
    held.get_by_role("link", name="Use").click()
    expect(page.get_by_role("main")).to_contain_text("export TVM_TRACKER_KEY=")
    web.open("/leases")
    until = held.locator("td[data-word=until]").inner_text()
    held.get_by_role("textbox").fill("2h")
    held.get_by_role("button", name="Extend").click()
    expect(held.locator("td[data-word=until]")).not_to_have_text(until)
    held.get_by_text("Give back …").click()
    held.get_by_role("button", name=f"Give {name} back").click()
    expect(page.get_by_role("status")).to_contain_text("is given back")
    expect(web.open(f"/jobs/{job}").locator(".state.big")).to_contain_text("done", timeout=60_000)


# --- jobs ---------------------------------------------------------------------------------------------------------


def test_a_bench_is_watched_to_its_end_and_its_plots_are_drawn(farm: VirtualFarm, model: Path, opens: Opens) -> None:
    done = farm.farm("bench", model, "--on", "soc=sm8650", "--repeat", "80", "--detach")
    job = re.findall(r"bench-[0-9a-f]{12}", done.stdout + done.stderr)[-1]
    page = opens().open("/jobs")
    page.locator("a.row").first.click()
    expect(page.locator("figure canvas")).to_have_count(3, timeout=100_000)  # samples, temperature, distribution
    (row,) = farm.client.call("job.list", jobs=[job])["jobs"] or [{}]
    assert row["state"] == "done"
    assert all(drawn > 1000 and colours > 3 for drawn, colours in page.evaluate(DRAWN))
    expect(page.get_by_role("heading", name="Verdict")).to_be_visible()
    expect(page.get_by_role("img", name="Samples over time")).to_be_visible()
    samples = page.locator("#plot-samples")
    expect(samples).to_contain_text("80 samples")
    expect(samples).to_contain_text("°C at the beginning")
    left = [round(box["x"]) for box in (each.bounding_box() for each in samples.locator(".u-over").all()) if box]
    assert left[0] == left[1]  # one axis of time
    samples.get_by_text("As a table").click()
    expect(samples.get_by_role("columnheader", name="median")).to_be_visible()
    expect(page.get_by_role("region", name="Log", exact=True)).to_contain_text("timing")
    with page.expect_download() as download:
        page.get_by_role("link", name="raw samples").click()
    assert download.value.suggested_filename == f"{job}.samples.json"


def test_a_tuning_that_goes_on_shows_its_estimate_and_what_it_says(
    farm: VirtualFarm, model: Path, opens: Opens
) -> None:
    done = farm.farm("tune", model, "--on", "soc=sm8650", "--trials", "400", "--detach")
    job = re.findall(r"tune-[0-9a-f]{12}", done.stdout + done.stderr)[-1]
    page = opens().open(f"/jobs/{job}")
    expect(page.locator("#plot-tuning canvas")).to_have_count(2, timeout=60_000)  # the page was opened before
    assert all(drawn > 500 and colours > 3 for drawn, colours in page.evaluate(DRAWN))
    expect(page.locator("#plot-tuning")).to_contain_text("The estimate")
    expect(page.get_by_role("region", name="Tasks so far")).to_contain_text("GFLOPS")
    lines = page.locator("#log .log-line").filter(has_text="trial ")
    expect(lines.last).to_be_visible(timeout=60_000)  # came after the page
    expect(lines.last.locator("time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    assert farm.client.call("job.list", jobs=[job])["jobs"][0]["state"] == "running"
    farm.client.call("job.cancel", job=job)
    expect(page.locator(".state.big")).to_contain_text("cancelled", timeout=60_000)


def test_a_model_s_history_is_drawn(farm: VirtualFarm, model: Path, benched: str, opens: Opens) -> None:
    assert farm.farm("bench", model, "--on", "soc=sm8650", "--repeat", "60").returncode == 0
    page = opens().open("/")
    page.get_by_role("link", name="History").click()
    page.get_by_role("link", name="dense.onnx").first.click()
    expect(page.locator("figure canvas").first).to_be_visible()
    assert all(drawn > 500 and colours > 2 for drawn, colours in page.evaluate(DRAWN))
    page.get_by_role("radio", name="is A").last.check()
    page.get_by_role("radio", name="is B").first.check()
    page.get_by_role("button", name="Show A beside B").click()
    answer = page.get_by_role("region", name="A and B")  # by the verdicts, which are this host's
    expect(answer).to_contain_text(re.compile(r"B / A is [\d.]+, 99 % interval|the result of [AB] is rejected"))


def test_jobs_are_filtered_and_paged(held: list[str], opens: Opens) -> None:
    page = opens().open("/jobs?state=held")
    assert shown_jobs(page) == held[:-51:-1]
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    assert shown_jobs(page) == held[-51::-1]
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("a.row")).to_have_count(50)
    page.get_by_label("Text").fill("PEAR 1")
    expect(page.locator("a.row")).to_have_count(6)  # 1, 11, 13, 15, 17, 19
    assert "text=PEAR" in page.url
    assert shown_jobs(page)[-1] == held[1]
    page.get_by_label("Kind").select_option("bench")
    expect(page.get_by_text("No job matches.")).to_be_visible()
    page.get_by_label("Selector").fill("soc=")
    expect(page.get_by_role("alert")).to_be_visible()


def test_jobs_are_sorted_counted_on_and_cancelled_together(farm: VirtualFarm, opens: Opens) -> None:
    spec = {"kind": "shell", "on": phones(farm)[0].name}
    web = opens()
    page = sign_in(web, token(farm, "otto", "operator"), "/jobs?text=quick")
    jobs = [
        farm.client.call("job.submit", spec={**spec, "command": f"sleep 600; echo quick {n}"})["jobs"][0]["id"]
        for n in range(3)
    ]
    ticking = page.locator("[data-elapsed]")
    expect(ticking).to_have_count(1)  # one phone: one runs
    before = ticking.inner_text()
    expect(ticking).not_to_have_text(before)
    page.get_by_role("link", name="What").click()
    expect(page.locator("a.row").first).to_have_text(jobs[0])
    page.get_by_role("link", name="What").click()
    expect(page.locator("a.row").first).to_have_text(jobs[2])
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert [job in download.value.path().read_text() for job in jobs] == [True] * 3
    page.get_by_role("checkbox", name="Choose all").check()
    page.get_by_role("checkbox", name=f"Choose {jobs[1]}").uncheck()
    page.locator("#chosen summary").click()
    page.get_by_role("button", name="Cancel them").click()
    expect(page.get_by_role("status")).to_contain_text("2 of 2 jobs are cancelled")
    assert "sort=-what" in page.url
    expect(page.locator("tr").filter(has_text=jobs[0])).to_contain_text("cancelled")
    farm.client.call("job.cancel", job=jobs[1])
    page.get_by_role("checkbox", name="mine").check()
    expect(page.get_by_text("No job matches.")).to_be_visible()  # they are root's


# --- who may do what ----------------------------------------------------------------------------------------------


def test_a_wrong_token_and_a_revoked_one_open_nothing(farm: VirtualFarm, opens: Opens) -> None:
    web = opens()
    page = web.open("/sign-in")
    page.get_by_label("Token").fill("farm_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page = sign_in(web, token(farm, "rita", "user"))
    assert farm.farm("auth", "revoke", "rita").returncode == 0
    web.open("/jobs")
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()


# --- for everybody ------------------------------------------------------------------------------------------------


def test_everything_can_be_reached_by_keys_and_nothing_holds_them(held: list[str], opens: Opens) -> None:
    page = opens().open("/jobs?state=held")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("/")
    expect(page.get_by_label("Text")).to_be_focused()
    page.keyboard.type("plum 58")
    expect(page.locator("a.row")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.get_by_label("Text")).to_have_value("plum 58")
    page.keyboard.press("j")
    expect(page.locator("a.row").first).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("echo plum 58")
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        where = page.evaluate("document.activeElement === document.body ? '' : document.activeElement.outerHTML")
        if where in seen or not where:
            break
        seen.append(where)
    assert 5 < len(seen) < 60  # round and out again


def test_the_keys_stay_where_they_are_while_rows_before_them_go(farm: VirtualFarm, opens: Opens) -> None:
    spec = {"kind": "shell", "on": "android", "hold": True, "command": "echo fig"}
    oldest, middle, newest = (farm.client.call("job.submit", spec=spec)["jobs"][0]["id"] for _ in range(3))
    page = opens().open("/jobs?state=held&text=fig")
    last = page.get_by_role("link", name=oldest, exact=True)
    last.focus()
    for job in (newest, middle):
        farm.client.call("job.cancel", job=job)
    expect(page.locator("a.row")).to_have_count(1)
    expect(last).to_be_focused()
    farm.client.call("job.cancel", job=oldest)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_axe_finds_nothing(
    farm: VirtualFarm, benched: str, held: list[str], width: int, scheme: str, opens: Opens
) -> None:
    web = opens(color_scheme=scheme, viewport={"width": width, "height": 900})
    sign_in(web, token(farm, f"axel-{width}-{scheme}", "operator"))
    device = f"/devices/{phones(farm)[0].name}"
    paths = (*PAGES, "/?view=table", device, f"/jobs/{benched}", f"/jobs/{held[0]}", "/history?model=dense.onnx")
    assert violations(web, paths) == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_from_their_ground(scheme: str, opens: Opens) -> None:
    page = opens(color_scheme=scheme).open("/")
    names = (*TOKENS, "ground", "card", "on-accent", "focus")
    colours = page.evaluate(
        """names => { const style = getComputedStyle(document.documentElement);
          return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])); }""",
        list(names),
    )
    poor = [
        (name, ground, round(contrast(colours[name], colours[ground]), 2))
        for name in TOKENS
        for ground in ("ground", "card")
        if contrast(colours[name], colours[ground]) < READABLE
    ]
    assert poor == []
    assert contrast(colours["on-accent"], colours["accent"]) >= READABLE
    assert contrast(colours["focus"], colours["ground"]) >= VISIBLE


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours as #rrggbb."""
    lights = sorted((_light(one), _light(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _light(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_dark_follows_the_system_and_the_reader_s_choice_stays(benched: str, opens: Opens) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    page = opens(color_scheme="dark").open(f"/jobs/{benched}")
    dark = page.evaluate(ground)
    before = page.evaluate("document.querySelector('figure canvas').toDataURL()")
    page.get_by_role("button", name="Change between light and dark").click()
    light = page.evaluate(ground)
    assert light != dark
    page.wait_for_function("before => document.querySelector('figure canvas').toDataURL() !== before", arg=before)
    page.reload()
    assert page.evaluate(ground) == light


def test_without_scripts_everything_can_be_read(benched: str, held: list[str], opens: Opens) -> None:
    page = opens(java_script_enabled=False).open("/")
    expect(page.locator(".wall li")).to_have_count(2)
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.get_by_label("Text").fill("plum 58")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("a.row")).to_have_count(1)
    page.goto(re.sub(r"/jobs.*", f"/jobs/{benched}", page.url))
    page.locator("#plot-samples summary").click()
    expect(page.locator("#plot-samples tbody tr").first).to_be_visible()
    page.get_by_role("link", name="Log of attempt 1").click()
    expect(page.get_by_role("region", name="Log", exact=True)).to_contain_text("timing")


def test_on_a_phone_s_screen_nothing_is_cut_off(benched: str, held: list[str], opens: Opens) -> None:
    page = opens(viewport=NARROW)
    wide = {}
    for path in (*PAGES, f"/jobs/{benched}", f"/jobs/{benched}/log", "/history?model=dense.onnx"):
        width = page.open(path).evaluate("document.documentElement.scrollWidth")
        if width > NARROW["width"]:
            wide[path] = width
    assert wide == {}


def test_on_a_phone_s_screen_name_and_state_stand_first(farm: VirtualFarm, held: list[str], opens: Opens) -> None:
    name = phones(farm)[0].name
    web = opens(viewport=NARROW)
    page = sign_in(web, token(farm, "nora", "operator"), "/jobs?state=held")
    row = page.locator("tr").filter(has=page.get_by_role("link", name=held[-1], exact=True))
    top = {part: box["y"] for part in (".name", ".status", ".id", ".line") if (box := row.locator(part).bounding_box())}
    assert max(top[".name"], top[".status"]) < min(top[".line"], top[".id"])
    page = web.open(f"/devices/{name}")
    orders = page.get_by_role("group", name=f"Orders for {name}").bounding_box()
    heading, state = page.get_by_role("heading", level=1).bounding_box(), page.locator(".state.big").bounding_box()
    assert orders
    assert heading
    assert state
    assert max(heading["y"], state["y"]) < orders["y"]
