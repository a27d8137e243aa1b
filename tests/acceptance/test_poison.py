"""A library that kills what runs it: told of once, refused everywhere from the second time on, until it is forgiven."""

import json
import subprocess
from dataclasses import replace

import pytest

from farm.compiler.package import read_package, write_package
from tests.support.whole_farm import Story, phones, until_ready

# It dies while it is loaded, as a library does whose code is not for that CPU.
KILLER = "#include <stdlib.h>\n__attribute__((constructor)) static void die(void) { abort(); }\n"

pytestmark = pytest.mark.farm("galaxy-s9", "oneplus-12")


@pytest.fixture(scope="module")
def killer(whole, model, tmp_path_factory):
    """A package as `farm compile` makes it, with another library inside."""
    folder = tmp_path_factory.mktemp("killer")
    path = folder / "killer.farm.tar"
    made = whole.farm("compile", str(model), "--on", "android", "-o", str(path))
    assert made.returncode == 0, made
    (folder / "killer.c").write_text(KILLER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "killer.so", folder / "killer.c"], check=True)
    package = read_package(path)
    library = (folder / "killer.so").read_bytes()
    name = next(name for name, content in package.members.items() if content == package.library)
    path.write_bytes(write_package(replace(package.manifest, sha256={}), {**package.members, name: library}))
    return str(path)


def ledger(farm):
    return [
        (row["kills"], row["refused_to_user"])
        for row in json.loads(farm.farm("poison", "list", "--json").stdout)["poison"]
    ]


def test_what_killed_on_two_phones_is_refused_on_every_one_and_for_every_kind_of_job(farm, killer, model):
    for number, phone in enumerate(phones(farm), 1):
        story = Story(farm)
        died = farm.farm("run", killer, "--on", phone.name, "--max-attempts", "1")
        assert died.returncode == 1, died
        story.until("device.ready", subject=phone.name)  # the phone itself is fine, and checked
        assert ledger(farm) == [(number, number == 2)]
    until_ready(farm)
    story = Story(farm)
    for command in (["run", killer], ["bench", killer], ["compare", str(model), killer]):
        refused = farm.farm(*command, "--on", "android")
        assert refused.returncode == 2, refused
        assert "has killed what ran it twice" in refused.stderr
        assert "farm poison" in refused.stderr
        assert "Traceback" not in refused.stderr
    story.read()
    assert "session.opened" not in story.kinds()
    allowed = farm.farm("run", str(model), "--on", "android")
    assert allowed.returncode == 0, allowed


def test_who_forgives_it_lets_it_run_again(farm, killer):
    (row,) = json.loads(farm.farm("poison", "list", "--json").stdout)["poison"]
    assert farm.farm("poison", "forget", row["artifact"][:12]).returncode == 0
    assert ledger(farm) == []
    again = farm.farm("run", killer, "--on", "android", "--max-attempts", "1")
    assert again.returncode == 1, again
    assert ledger(farm) == [(1, False)]
