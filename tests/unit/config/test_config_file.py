"""Whatever somebody puts in the configuration file's place is read or refused, and holds nobody up."""

import os
from pathlib import Path

import pytest

from farm.common.toml import MAX_DOTS
from farm.config import MAX_FILE_BYTES, ConfigError, load


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a." * 30_000 + "b = 1", f"more than {MAX_DOTS} dots"),
        ("[" + "a." * 30_000 + "b]", f"more than {MAX_DOTS} dots"),
        ('x = "' + "#" * 10 + '"\n"a"' + '."b"' * 100 + " = 1", f"more than {MAX_DOTS} dots"),
        ("#" * (MAX_FILE_BYTES + 1), f"more than {MAX_FILE_BYTES:,} bytes"),
        ("x = " + "[" * 50_000, "brackets in brackets"),
        ("[tvm]\nport = " + "9" * 5000, "not valid TOML"),
        ("[tvm]\nport = 0x" + "f" * 20_000, "out of any range"),
        ("[lease]\nidle_s = 0x" + "f" * 20_000, ""),
        ("\udc80", "it is no text"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(text, said, tmp_path):
    file = tmp_path / "farm.toml"
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError) as refused:
        load(file, environ={})
    assert said in refused.value.message
    assert str(file) in refused.value.message
    assert len(refused.value.message) < 1000


def test_only_a_regular_file_is_read(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="it is no regular file"):
            load(path, environ={})  # at once: nobody will ever write to the fifo
    with pytest.raises(ConfigError, match=r"Is a directory|no regular file"):
        load(tmp_path, environ={})


def test_dots_in_texts_and_comments_are_nobodys_business(tmp_path):
    file = tmp_path / "farm.toml"
    dots = "." * (2 * MAX_DOTS)
    file.write_text(f'# {dots}\n[user."a{dots}"]\nweight = 2.0 # {dots}\n')
    assert list(load(file, environ={}).user) == [f"a{dots}"]


def test_environment_values_with_many_brackets_are_texts():
    with pytest.raises(ConfigError, match="environment FARM_TVM__PORT"):
        load(environ={"FARM_TVM__PORT": "[" * 50_000})
