"""`farm trace show`: what a recorded trace looks like."""

import json

import pytest

from farm.cli import trace
from farm.common.errors import UserError
from tests.unit.devices.captures import capture, probe_answer

THERMAL = capture("thermalservice/pixel8a-android17")
BATTERY = capture("dumpsys_battery/honor-alt-nx1-magicos")


def cpu(khz):
    folder = "/sys/devices/system/cpu/cpufreq/policy0"
    named = {"related_cpus": "0 1", "scaling_cur_freq": khz, "scaling_max_freq": khz, "cpuinfo_max_freq": 2_400_000}
    return "\n".join(f"{folder}/{name}={value}" for name, value in named.items()).encode()


def recorded(tmp_path, *khz):
    file = tmp_path / "trace.jsonl"
    probes = [probe_answer(battery=BATTERY, thermal=THERMAL, cpu=cpu(each)).decode() for each in khz]
    rows = [{"t": number * 1.5, "probe": probe, "health": {}} for number, probe in enumerate(probes)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_a_trace_is_a_table_and_a_plot(tmp_path, capsys, monkeypatch, snapshot, locale):
    monkeypatch.setenv("LC_ALL", locale)
    trace.show(recorded(tmp_path, 2_400_000, 2_400_000, 1_200_000))
    snapshot(capsys.readouterr().out)


def test_a_long_trace_is_thinned_out_and_keeps_its_peaks(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    trace.show(recorded(tmp_path, *[1_000_000] * 499, 2_400_000))
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if "GHz" in line and "/" in line]) == 39
    at = lines.index("fastest cluster's highest clock: 1 to 2.4 GHz")
    assert lines[at + 1] == "▁" * (trace.WIDTH - 1) + "█"


def test_a_trace_as_json_is_read_anew(tmp_path, capsys):
    trace.show(recorded(tmp_path, 2_400_000), json=True)
    (row,) = json.loads(capsys.readouterr().out)["probes"]
    assert (row["t"], row["health"]["cpu"][0]["max_khz"]) == (0.0, 2_400_000)


@pytest.mark.parametrize("torn", [b'{"t": 3, "probe": "==farm:bat', '{"t": 3, "probe": "31 °'.encode()[:-1]])
def test_a_trace_whose_recording_was_cut_is_shown_without_its_last_line(tmp_path, capsys, torn):
    file = recorded(tmp_path, 2_400_000, 1_200_000)
    file.write_bytes(file.read_bytes() + torn)
    trace.show(file)
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[1:3]] == ["0.0s", "1.5s"]
    assert "incomplete" in said.err


@pytest.mark.parametrize(
    "text", [b"", b"no json\n", b'{"t": 0, "files": {"dumpsys/battery": "level: 3"}}\n', b"\xff\xfe", None]
)
def test_a_file_that_is_no_trace_is_named_once(tmp_path, text):
    file = tmp_path / "trace.jsonl"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(UserError, match=r"trace\.jsonl") as caught:
        trace.show(file)
    assert (caught.value.message.count(str(file)), "Errno" in caught.value.message) == (1, False)
    assert text is not None or "cannot read" in caught.value.message


def test_a_recording_keeps_what_is_there_and_lasts_longer_than_its_pace(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        trace.record("pixel", file)
    assert file.read_text() == "mine"
    with pytest.raises(UserError, match="--for 3s is shorter than --every 10s"):
        trace.record("pixel", tmp_path / "other", last="3s", every="10s")
