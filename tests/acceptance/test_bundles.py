"""Bundles by the commands a person types, and what becomes of them on phones."""

import pytest

from tests.support.whole_farm import ON_PHONE, Story, answer, refused

pytestmark = pytest.mark.farm("realme-gt-neo3")


def pushes(story):
    return [event for event in story.events if event["kind"] == "device.pushing"]


def reboot(farm, phone, story):
    farm.lab.reboot(phone.nickname)
    story.until("device.gone")
    story.until("device.ready")


def on_phone(phone):
    return phone.shell(f"ls -A {ON_PHONE}/farm/bundles").split()


def test_an_unchanged_bundle_is_not_pushed_again(farm, phone):
    story = Story(farm)
    reboot(farm, phone, story)
    assert pushes(story) == []
    assert on_phone(phone) == [phone.row["bundle"]]


def test_the_same_folder_again_is_the_same_bundle_with_one_more_name(farm):
    again = answer(farm.farm("bundle", "add", str(farm.folder / "bundle"), "--name", "again", "--json"))
    [first] = {bundle["hash"] for bundle in answer(farm.farm("bundle", "list", "--json"))["bundles"]}
    assert again["hash"] == first
    assert farm.farm("bundle", "remove", "again").returncode == 0
    assert answer(farm.farm("bundle", "show", first[:12], "--json"))["name"] == "virtual"


def test_only_what_differs_is_pushed(farm, phone):
    library = f"{ON_PHONE}/farm/bundles/{phone.row['bundle']}/libtvm_ffi.so"
    size = int(phone.shell(f"stat -c %s {library}"))
    phone.shell(f"rm {library}")
    story = Story(farm)
    reboot(farm, phone, story)
    assert {push["data"]["total_bytes"] for push in pushes(story)} == {size}


def test_verify_finds_damage_in_the_library_and_adding_it_again_mends_it(farm):
    assert answer(farm.farm("bundle", "verify", "virtual", "--json"))["differences"] == []
    [stored] = farm.folder.glob("state/bundles/objects/*/files/libtvm_ffi.so")
    stored.chmod(0o644)
    content = bytearray(stored.read_bytes())
    content[4096] ^= 1
    stored.write_bytes(content)
    damaged = farm.farm("bundle", "verify", "virtual")
    assert damaged.returncode == 1
    assert "libtvm_ffi.so: has other content" in damaged.stdout
    assert farm.farm("bundle", "add", str(farm.folder / "bundle"), "--name", "virtual").returncode == 0
    assert farm.farm("bundle", "verify", "virtual").returncode == 0


def test_a_bundle_that_is_not_there_is_named_with_the_nearest(farm):
    refused(farm.farm("bundle", "show", "virtuel"), 2, "virtuel", "did you mean virtual?")
