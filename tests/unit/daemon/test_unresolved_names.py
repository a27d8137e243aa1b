"""Settings whose names point at nothing."""

import asyncio
import logging

from farm.config import load
from farm.daemon.problems import Problems, unresolved_names


def told(keys, tmp_path, text):
    file = tmp_path / "farm.toml"
    file.write_text(text)
    return list(unresolved_names(load(file, environ={}), keys))


def test_a_key_that_nobody_answers_to_is_told_once_phones_are_there(tmp_path):
    text = "[gates.tvm_class]\nflagship = 'bench'\nflagshp = 'bench'"
    (line,) = told({"flagship", "pixel"}, tmp_path, text)
    assert "[gates.tvm_class] flagshp: no phone and no alias has that key" in line
    assert told(set(), tmp_path, text) == []


def test_a_word_that_no_phone_answers_to_adopts_nobody(tmp_path):
    config = tmp_path / "farm.toml"
    config.write_text('[[adopt]]\nmatch = "andriod"\n[[adopt]]\nmatch = "android,soc=sm9999"\n')
    found = load(config, environ={})
    (line,) = unresolved_names(found, set(), {"android", "adreno-740"})
    assert line == '[[adopt]] match = "andriod": no phone that has come answers to andriod (did you mean android?)'
    assert list(unresolved_names(found, set(), set())) == []  # nobody can know yet


def test_a_program_and_a_folder_that_are_not_there_are_told(tmp_path):
    text = "[power]\nuhubctl = '/nonexistent/uhubctl'\n[usb]\nsysfs = '/nonexistent/sys'"
    program, folder = told(set(), tmp_path, text)
    assert "/nonexistent/uhubctl" in program
    assert "/nonexistent/sys" in folder
    assert "is no sysfs" in told(set(), tmp_path, f"[usb]\nsysfs = '/{'9' * 300}'")[0]  # stat fails
    (tmp_path / "sys" / "bus").mkdir(parents=True)
    assert told(set(), tmp_path, f"[power]\nuhubctl = '/bin/sh'\n[usb]\nsysfs = '{tmp_path}/sys'") == []


def test_a_host_of_a_lab_that_serves_alone_is_told(tmp_path, caplog):
    file = tmp_path / "farm.toml"
    alone, of_a_lab = (
        "[adb]\nmanage = false\n[lab]\nhost = 'lab1'",
        "\nhead = 'apart'\n[store]\nurl = 'postgresql://db/f'",
    )
    file.write_text(alone)
    with caplog.at_level(logging.WARNING):
        (line,) = asyncio.run(Problems(load(file, environ={})).current())
    assert line.startswith(
        '[lab] host = "lab1" is no host of a lab yet, but a single one: a lab also needs [store] url'
    )
    assert caplog.messages == [line]
    file.write_text(alone + of_a_lab)
    assert asyncio.run(Problems(load(file, environ={})).current()) == []
