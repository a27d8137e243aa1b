"""Fixtures every test may use: a private adb server and virtual phones plugged into it."""

from __future__ import annotations

import gc
import os
import resource
import signal
from collections import Counter, defaultdict
from contextlib import ExitStack
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import settings

from tests.adb_server import AdbServer, adb_binaries
from tests.support.needs import packages_of
from tests.support.waiting import HANG_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from farm.simulation.control import LabClient
    from farm.simulation.virtual_farm import VirtualFarm
    from tests.support.whole_farm import Phone


@pytest.hookimpl(trylast=True)  # pytest's own cache is ready
def pytest_configure(config: pytest.Config) -> None:
    """A run in the background ignores Ctrl-C, and one under nohup a hang-up; so would every command that it starts."""
    if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit it
        # What tests compile or fetch stays in the clone: a test that passes needs nothing of a developer's caches.
        os.environ["XDG_CACHE_HOME"] = str(config.cache.mkdir("home")) if hasattr(config, "cache") else mkdtemp()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A terminal's limit of descriptors, 1,024, is too low for a worker with its farms, phones and processes.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # no command inherits a handler
    # A loaded host is no failure. Half as many examples as Hypothesis has: each run tries others, and CI is two runs.
    settings.register_profile("farm", deadline=None, max_examples=50)
    settings.load_profile("farm")


def pytest_collection() -> None:
    """Nothing that collecting makes is garbage, and looking through it takes a sixth of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Everything that is there now stays to the end: the collector need not look through it again and again."""
    gc.freeze()
    gc.enable()


_MISSING = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print where the time went, by folder; remember the packages that skipped tests need."""
    reasons = [str(each.longrepr[2]) for each in terminalreporter.stats.get("skipped", ()) if each.longrepr]
    config.stash[_MISSING] = packages_of(reasons)
    seconds: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by folder: of tests, and to set up and tear down
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if isinstance(report, pytest.TestReport):
            seconds["/".join(report.nodeid.split("::")[0].split("/")[1:-1])][report.when] += report.duration
    if len(seconds) > 1:
        terminalreporter.write_line(f"{'seconds of all workers':24}{'set up':>8}{'tests':>8}{'tear down':>11}")
    for folder, spent in sorted(seconds.items(), key=lambda each: -each[1].total()) if len(seconds) > 1 else ():
        terminalreporter.write_line(f"{folder:24}{spent['setup']:8.1f}{spent['call']:8.1f}{spent['teardown']:11.1f}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say as the last line what to install for the tests that were skipped."""
    if packages := config.stash.get(_MISSING, []):
        print(f"\nto run the tests skipped for want of a program: apt install {' '.join(packages)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What happened in the module's farm stands below the failure of a test."""
    report = yield
    farm = getattr(item, "funcargs", {}).get("whole")
    if report.failed and farm:
        from tests.support.whole_farm import told

        report.sections.append(("the module's farm", told(farm)))
    return report


@pytest.fixture(scope="session", autouse=True)
def _forked_processes() -> Iterator[None]:
    """Daemons and labs of virtual phones begin as forks of processes that have imported them."""
    from farm.simulation import control, farm_process
    from tests.support.forked_processes import popen

    with mock.patch.object(control, "Popen", popen), mock.patch.object(farm_process, "Popen", popen):
        yield


@pytest.fixture(scope="session")
def adb_binary() -> str:
    """The adb program to use where the version does not matter."""
    binaries = adb_binaries()
    if not binaries:
        pytest.skip("no adb program on this machine")
    return binaries.get("bundled") or next(iter(binaries.values()))


@pytest.fixture
def adb_server(adb_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdbServer]:
    """An adb server of the test's own: `.socket` is its socket spec, `.run(...)` calls the adb program against it."""
    server = AdbServer(adb_binary, tmp_path_factory.mktemp("adb"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def lab(adb_server: AdbServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LabClient]]:
    """Start virtual phones: `lab({"pixel": "oneplus-12"})` returns a LabClient when all are online in `adb_server`."""
    from farm.simulation.control import running_lab

    with ExitStack() as stack:

        def start(phones: dict[str, str], *, plugged: bool = True, **options: object) -> LabClient:
            directory = tmp_path_factory.mktemp("lab")
            client = stack.enter_context(
                running_lab(directory, phones, adb_socket=adb_server.socket, plugged=plugged, **options)  # type: ignore[arg-type]
            )
            if plugged and phones:
                client.wait("*", "online", timeout_s=HANG_S)
                for phone in client.status().values():
                    adb_server.wait_for_state(phone.serial, "device")
            return client

        yield start


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest) -> Iterator[VirtualFarm]:
    """The farm of a module that says `pytestmark = pytest.mark.farm(...)`, with the arguments of `running_farm`."""
    from tests.support.whole_farm import running_farm

    mark = request.node.get_closest_marker("farm")
    with running_farm(*mark.args, **mark.kwargs) as farm:
        yield farm


@pytest.fixture
def farm(whole: VirtualFarm) -> VirtualFarm:
    """The module's farm, its phones ready again."""
    from tests.support.whole_farm import until_ready

    until_ready(whole)
    return whole


@pytest.fixture
def phone(farm: VirtualFarm) -> Iterator[Phone]:
    """The phone that things happen to: the first; its lab is as it should be afterwards."""
    from tests.support.whole_farm import phones

    phone = phones(farm)[0]
    yield phone
    farm.lab.good_kernels(phone.nickname)
    farm.lab.free_disk(phone.nickname)
    farm.lab.plug(phone.nickname)
    farm.lab.cool(phone.nickname)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file: the module's MODEL, its name and bytes; else one that compiles in a tenth of the usual time."""
    from tests.support.tiny_model import tiny_onnx

    name, data = getattr(request.module, "MODEL", ("tiny.onnx", tiny_onnx()))
    path = tmp_path_factory.mktemp("model") / name
    path.write_bytes(data)
    return path
