"""`farm builder` on the builder's own side: what it prints, and what it refuses before anything heavy is imported."""

import sys

import pytest

from farm.cli.builder import kubernetes, slurm, start
from farm.common.errors import UserError


def test_without_a_membership_it_says_how_to_get_one_and_imports_no_dask(tmp_path):
    before = "distributed" in sys.modules
    with pytest.raises(UserError, match=f"this machine has no membership of a farm in {tmp_path}") as raised:
        start(tmp_path, 1, 0)
    assert "farm builder join" in raised.value.hint
    assert ("distributed" in sys.modules) is before


def test_the_slurm_script_starts_an_array_with_the_shared_certificate(tmp_path, capsys, snapshot):
    slurm(20, 8, 12, tmp_path / "a b")
    snapshot(capsys.readouterr().out.replace(str(tmp_path), "TMP").replace(sys.executable, "PYTHON"))


def test_the_manifest_mounts_the_certificate_for_its_owner_only(capsys, snapshot):
    kubernetes("lab/farm:1", 3, 4, 4)
    snapshot(capsys.readouterr().out)
