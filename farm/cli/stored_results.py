"""Stored results, read from the daemon page by page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.control.client import ControlClient

PAGE = 500


def model_hashes(client: ControlClient, model: str) -> list[str]:
    """Hashes of the measured models of that name, or whose hash begins so; of a file, its own."""
    path = Path(model)
    if path.is_file():
        from farm.client.specs import file_hash
        from farm.compiler.onnx_data import whole

        return [file_hash(whole(path))]
    answer = client.call("history.models", model=model)
    return list(dict.fromkeys(each["model"] for each in answer["models"]))


def stored_results(
    client: ControlClient, sha256: str | None, device: str, since: datetime | None = None, limit: int = PAGE
) -> Iterator[dict[str, Any]]:
    """Results, newest first, a page at a time.

    Args:
        client: of the daemon.
        sha256: of the model; None: all models.
        device: a phone's name; "": all phones.
        since: none older than this time; None: of any age.
        limit: how many are asked for at once, PAGE at most.
    """
    asked: dict[str, Any] = {"device": device, "limit": min(limit, PAGE)} | ({"model": sha256} if sha256 else {})
    while True:
        answer = client.call("history.list", **asked)
        for row in answer["rows"]:
            if since is not None and datetime.fromisoformat(row["at"]) < since:
                return
            yield row
        if not answer["more"]:
            return
        asked["before"] = answer["rows"][-1]["seq"]
