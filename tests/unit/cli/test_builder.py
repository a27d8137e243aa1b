"""`farm builder` on the builder's own side: what it prints, and what it refuses before anything heavy is imported."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from farm.cli.builder import kubernetes, slurm, start
from farm.common.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def test_without_a_certificate_it_says_how_to_get_one_and_imports_no_dask(tmp_path: Path) -> None:
    before = "distributed" in sys.modules
    with pytest.raises(UserError, match=f"this machine has no certificate in {tmp_path}") as raised:
        start(tmp_path, 1, 0)
    assert "farm builder join TOKEN" in raised.value.hint
    assert ("distributed" in sys.modules) is before


def test_the_slurm_script_starts_an_array_with_the_shared_certificate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm(20, 8, 12, tmp_path / "a b")
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash\n")
    assert "#SBATCH --array=1-20\n#SBATCH --cpus-per-task=8\n#SBATCH --time=12:00:00\n" in script
    assert f"builder start --folder '{tmp_path}/a b'" in script


def test_the_manifest_mounts_the_certificate_for_its_owner_only(capsys: pytest.CaptureFixture[str]) -> None:
    kubernetes("lab/farm:1", 3, 4, 4)
    manifest = capsys.readouterr().out
    assert "\n  replicas: 3\n" in manifest
    assert "matchLabels: {app: farm-builder}" in manifest
    assert "secret: {secretName: farm-builder, defaultMode: 0400}" in manifest
