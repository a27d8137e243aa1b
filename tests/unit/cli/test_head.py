"""`farm head` is refused where there is nothing for it to decide."""

from pathlib import Path

import pytest

from farm.cli.head import head
from farm.common.errors import UserError


def test_without_a_server_there_is_no_head_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FARM_CONFIG", "FARM_STORE__URL"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "farm.toml"
    config.write_text('[lab]\nhost = "lab1"\n')
    with pytest.raises(UserError, match="needs a database on a server") as caught:
        head(config)
    assert "farm serve" in caught.value.hint
