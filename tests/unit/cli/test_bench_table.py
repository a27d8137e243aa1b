"""What `farm bench` prints: one scale, and what lies behind it; what commands refuse before they ask a daemon."""

import pytest
from typer.testing import CliRunner

from farm.cli.bench import print_results
from farm.cli.main import app
from farm.compiler.package import LIBRARY, REFERENCE, write_package
from tests.support.packages import MADE


@pytest.fixture
def typed(monkeypatch, tmp_path):
    """Run a command of a user without a daemon, in a folder with a model and a package."""
    monkeypatch.setenv("FARM_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").write_bytes(b"a model")
    (tmp_path / "net.farm.tar").write_bytes(write_package(MADE, {LIBRARY: b"library", REFERENCE: b"arrays"}))
    return lambda *arguments: CliRunner().invoke(app, arguments)


def result(estimate_ms, seen_ms):
    return {
        "device": "pixel", "soc": "SM8650", "target": "cpu", "identity": {}, "verdict": "trusted",
        "max_abs_error": 1e-6,
        "latency": {"median_ms": seen_ms, "min_ms": seen_ms * 0.9, "max_ms": seen_ms * 1.2, "count": 40},
        "estimate": {"median_ms": estimate_ms, "low_ms": estimate_ms * 0.99, "high_ms": estimate_ms * 1.01},
    }  # fmt: skip


def test_all_times_are_at_nominal_speed_and_the_clocks_stands_beside_them(capsys):
    print_results([result(1.0, 8.0)])
    head, row, foot = capsys.readouterr().out.splitlines()
    assert "AS SEEN ms" in head
    assert row.split()[3:11] == ["1.000", "0.9900", "..", "1.010", "0.9000", "..", "1.200", "8.000"]
    assert foot.startswith("  pixel: not at nominal speed")


def test_without_a_correction_there_is_nothing_else_to_show(capsys):
    print_results([result(1.0, 1.005)])
    head, row = capsys.readouterr().out.splitlines()
    assert "AS SEEN" not in head
    assert row.split()[3:11] == ["1.000", "0.9900", "..", "1.010", "0.9000", "..", "1.200", "40"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bench net.onnx --on host", "farm bench runs on phones, not on this host"),
        ("compare net.onnx net.onnx --on host", "farm compare runs on phones, not on this host"),
        ("bench net.farm.tar --on android --profile", "holds no operators to time"),
        ("tune net.farm.tar --on android", "is a package, compiled already"),
        ("tune net.onnx --on host -o /proc/x.farm.tar", "cannot write /proc/x.farm.tar: "),
        ("compile net.onnx --target host -o /proc/x.farm.tar", "cannot write /proc/x.farm.tar: "),
        ("compile net.onnx --target host -o none/x.farm.tar", "there is no folder none"),
        ("run net.onnx --on host --devices 2", "--devices: on this host nothing is queued"),
        ("run net.onnx --on host --timeout 5s --detach", "--timeout, --detach: on this host nothing is queued"),
        ("tune net.onnx --on host --priority 7 --deadline 2h", "--priority, --deadline: on this host nothing is"),
        ("model make one_conv -o .", "cannot write .: Is a directory"),
    ],
)
def test_what_cannot_end_well_is_not_begun(typed, line, said, tmp_path):
    before = sorted(tmp_path.iterdir())
    done = typed(*line.split())
    assert done.exit_code == 2 or done.exception is not None
    assert said in done.output + str(getattr(done.exception, "message", ""))
    assert sorted(tmp_path.iterdir()) == before
