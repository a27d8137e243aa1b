"""Which TVM and FFI something has, and whether two of them fit: by a table of what was tried, and by nothing else."""

import pytest

from farm.bundle.versions import (
    BUILD_TITLES,
    TITLES,
    Compatibility,
    KnownBuild,
    TrialKind,
    TrialResult,
    TvmVersions,
    VersionTrial,
    alone_verdict,
    bundle_versions,
    checked,
    installed_versions,
    known_builds,
    known_trials,
    of_packages,
    parse_builds,
    parse_trials,
    verdict,
)
from farm.common.errors import Code
from tests.support.errors import raises_code

OLD, NEW, ODD = TvmVersions("1.0", "0.1"), TvmVersions("2.0", "0.2"), TvmVersions("2.0", "0.3")
NEVER = TvmVersions("3.0", "0.9")
ENVIRONMENT, SERVER, SESSION, PACKAGE = TrialKind


def trial(kind, versions, other, result, detail=""):
    return VersionTrial(kind, versions, other, TrialResult(result), detail)


TRIALS = (
    *(trial(ENVIRONMENT, each, TvmVersions(), "works") for each in (OLD, NEW)),
    trial(ENVIRONMENT, ODD, TvmVersions(), "crash", "pickle: SIGSEGV"),
    *(trial(SESSION, each, each, "works") for each in (OLD, NEW)),
    trial(SESSION, OLD, NEW, "wrong", "run: off by 3"),
    trial(SESSION, NEW, OLD, "works"),
    trial(SESSION, NEW, ODD, "hang", "connect"),
    trial(PACKAGE, OLD, NEW, "refused", "run: no function main"),
)


@pytest.mark.parametrize(
    ("client", "server", "compatibility", "said"),
    [
        (OLD, OLD, "ok", ""),
        (NEW, OLD, "ok", ""),
        (
            OLD,
            NEW,
            "broken",
            "TVM 1.0 with FFI 0.1 talking to TVM 2.0 with FFI 0.2 gives wrong numbers (run: off",
        ),
        (NEW, ODD, "broken", "hangs (connect)"),
        (ODD, ODD, "broken", "TVM 2.0 with FFI 0.3 crashes (pickle: SIGSEGV)"),
        (NEVER, NEW, "unknown", "nobody has tried it"),
        (NEVER, NEVER, "ok", ""),  # both sides of one build, which nobody has seen fail
        (OLD, TvmVersions("1.0"), "ok", ""),  # there is but one such FFI
        (NEW, TvmVersions("2.0"), "unknown", "which of several FFIs"),  # one works, one does not
        (OLD, TvmVersions("2.0"), "broken", "wrong numbers"),
        (TvmVersions(), TvmVersions(), "unknown", ""),
    ],
)
def test_two_sides_fit_or_not_by_what_was_tried(client, server, compatibility, said):
    found = verdict(client, server, TRIALS)
    assert found.compatibility is Compatibility(compatibility)
    assert said in found.reason
    assert bool(found.reason) is (compatibility != "ok")


def test_code_that_another_compiled_is_judged_by_trials_of_that():
    assert verdict(OLD, NEW, TRIALS, PACKAGE).broken
    assert verdict(NEW, OLD, TRIALS, PACKAGE).unknown  # though its session works
    assert not verdict(ODD, ODD, TRIALS, PACKAGE).broken  # what a pair cannot do alone says nothing of its code


def test_a_server_that_does_not_start_fits_nobody():
    trials = (*TRIALS, trial(SERVER, OLD, TvmVersions(), "refused", "undefined symbol"))
    assert "undefined symbol" in verdict(NEW, OLD, trials).reason


def test_a_pair_alone():
    assert alone_verdict(OLD, TRIALS).compatibility is Compatibility.OK
    assert alone_verdict(ODD, TRIALS).broken
    assert alone_verdict(NEVER, TRIALS).unknown


def test_rows_are_read_as_they_were_written():
    lines = ["# why", "\t".join(TITLES), *(each.line() for each in TRIALS)]
    assert tuple(parse_trials(lines)) == TRIALS
    assert "\n" not in VersionTrial(SESSION, OLD, NEW, TrialResult.CRASH, "a\tb\nc").line()


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["kind\ttvm"],
        ["\t".join(TITLES), "session\t1"],
        ["\t".join(TITLES), "talk\t1\t1\t1\t1\tworks\t-"],
        ["\t".join(TITLES), "session\t1\t1\t1\t1\tfine\t-"],
    ],
)
def test_a_damaged_table_is_an_error(lines):
    with pytest.raises(ValueError, match=r"."):
        list(parse_trials(lines))


def test_one_library_may_be_of_several_releases():
    rows = ["\t".join(BUILD_TITLES), "ab\tapache-tvm\t1.0\tx86_64\tl.so", "ab\tapache-tvm\t1.0.post1\tx86_64\tl.so"]
    assert parse_builds(rows) == {"ab": KnownBuild("apache-tvm", "l.so", ("1.0", "1.0.post1"))}


def test_damaged_builds_are_an_error():
    with pytest.raises(ValueError, match="first line"):
        parse_builds(["abc\tapache-tvm"])


def test_an_interpreter_is_of_its_packages_else_of_what_tvm_says():
    assert of_packages({"apache-tvm": "2.0", "apache-tvm-ffi": "0.2"}, "2.0.dev1") == NEW
    assert of_packages({"python": "3.11", "apache-tvm": ""}, "2.0.dev1") == TvmVersions("2.0.dev1")


def test_what_is_shipped_knows_the_pair_that_farm_is_installed_with():
    here = installed_versions()
    assert here.tvm
    assert here.ffi
    assert verdict(here, here, known_trials()).compatibility is Compatibility.OK
    assert alone_verdict(here, known_trials()).compatibility is Compatibility.OK
    assert {version for each in known_builds().values() for version in each.versions} >= {here.tvm, here.ffi}


def test_a_pair_that_is_known_not_to_work_is_refused_with_what_to_do():
    bad = next(each for each in known_trials() if each.kind is SERVER and each.result is not TrialResult.WORKS)
    with raises_code(Code.VERSIONS_UNFIT, match="bundle b with toolchain t cannot work") as caught:
        checked(installed_versions(), bad.versions, "bundle b with toolchain t", "take both from one TVM")
    assert str(bad.versions) in caught.value.message
    assert caught.value.hint == "take both from one TVM"
    assert "is not known" in checked(NEVER, NEW, "bundle b with toolchain t", "")


def test_a_bundle_that_says_nothing_is_taken_to_be_as_its_toolchain_and_says_so():
    here = installed_versions()
    versions, warnings = bundle_versions("b", TvmVersions(), "t", here)
    assert versions == here
    assert "neither the libraries nor bundle.toml" in warnings[0]
    assert bundle_versions("b", here, "t", here) == (here, ())
