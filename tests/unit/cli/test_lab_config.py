"""`farm lab config FILE`: mistakes name the file that was given."""

import pytest

from farm.config import ConfigError, check_lab_config


@pytest.mark.parametrize("text", ["[quota\n", "[quota]\ndevises = 3\n", "[store]\nurl = 'x'\n"])
def test_a_mistake_names_the_file(answers, farm, tmp_path, text):
    file = tmp_path / "lab.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        check_lab_config(text)
    answers["lab.set_config"] = caught.value
    said = farm(f"lab config {file}")
    assert said.code == 2
    assert said.err.startswith("error: TMP/lab.toml: ")
    assert "the lab's configuration" not in said.err
