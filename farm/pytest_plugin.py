"""The pytest plugin (docs/scripts.md): fixtures `farm_phone` and `assert_not_slower`.

pytest loads it wherever farm is installed, so it imports of farm only what a test asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from farm.client import Client, Lease
    from farm.results.ci import CiCase

OPTION = "--farm-on"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the phones."""
    group = parser.getgroup("farm", "phones of a farm")
    group.addoption(OPTION, metavar="SELECTOR", help="phones for farm_phone and assert_not_slower; without: skipped")


@pytest.fixture(scope="session")
def farm_client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A `farm.Client`, open while tests use it; without --farm-on they are skipped."""
    if not request.config.getoption(OPTION):
        pytest.skip(f"needs a phone of a farm: pytest {OPTION} SELECTOR")
    from farm import Client

    with _plain_failures(), Client() as client:
        yield client


@pytest.fixture
def farm_phone(farm_client: Client, request: pytest.FixtureRequest) -> Iterator[Lease]:
    """A phone leased for one test; `farm_phone.environment` has the variables by which adb and TVM find it."""
    if "assert_not_slower" in request.fixturenames:
        pytest.fail("farm_phone holds the phone that assert_not_slower would wait for: use two tests", pytrace=False)
    with _plain_failures(), farm_client.lease(on=request.config.getoption(OPTION), note=request.node.name) as lease:
        yield lease


@pytest.fixture
def assert_not_slower(farm_client: Client, request: pytest.FixtureRequest) -> Callable[..., list[CiCase]]:
    """Time a model in turns with its baseline on every phone of --farm-on; see `check` for its arguments."""

    def check(
        model: Path | str, baseline: Path | str, *, fail_if: str = "slower by 2 %", **fields: Any
    ) -> list[CiCase]:
        """Fail the test if the model is slower for sure, or a phone failed; noise never fails it.

        Args:
            model: a model file, or a package.
            baseline: what it is compared with.
            fail_if: as of `farm ci compare`.
            fields: of `CompareSpec`, such as `measure_s`.

        Returns:
            The answer of each phone, which may be `cannot tell`.
        """
        from farm.results.ci import BEYOND, CiAnswer, CiCase, FailLimit, compared

        __tracebackhide__ = True
        with _plain_failures():
            limit = FailLimit.parse(fail_if)
            found = farm_client.compare(baseline, model, on=request.config.getoption(OPTION), **fields)
        name, against = Path(model).name, Path(baseline).name
        cases = [
            compared(each.result["comparison"], name, each.device, against, limit)
            if each.ok
            else CiCase(name, each.device, CiAnswer.FAILED, each.error.message if each.error else each.job.state)
            for each in found
        ]
        lines = [f"{name} on {case.device}: {case.answer}, {case.change} ({case.about})" for case in cases]
        request.node.user_properties.extend(("farm", line) for line in lines)
        bad = [line for line, case in zip(lines, cases, strict=True) if case.answer in (*BEYOND, CiAnswer.FAILED)]
        if bad:
            pytest.fail("\n".join([f"not {limit.text} or more was asked for", *bad]), pytrace=False)
        return cases

    return check


@contextmanager
def _plain_failures() -> Iterator[None]:
    """Errors of farm as they are for people: a sentence and a hint, not a traceback."""
    from farm.common.errors import FarmError

    try:
        yield
    except FarmError as error:
        failed = pytest.fail.Exception(
            f"{error.message}\nhint: {error.hint}" if error.hint else error.message, pytrace=False
        )
        raise failed from None
