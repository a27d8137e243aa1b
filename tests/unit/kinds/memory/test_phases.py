"""What a phone says about memory, and what becomes of it: rows, notes, the table."""

from dataclasses import replace

import pytest

from farm.kinds.memory.command import print_results
from farm.kinds.memory.phases import (
    NO_GPU,
    NO_GPU_PEAK,
    NO_ROLLUP,
    ONE_PEAK,
    PHASES,
    MemoryReading,
    ModelPhase,
    in_order,
    notes_on,
    peak_bytes,
    read_lines,
    values_in,
)
from farm.measure.metrics import are_values

SAID = """\
now 1764266000
process 812
VmHWM: 2000 kB
VmRSS: 1400 kB
VmSwap: 300 kB
Rss: 1500 kB
Pss: 900 kB
Swap: 300 kB
gpu gpumem_mapped 4096
gpu gpumem_unmapped 8192
gpu kernel_max 20480
peaks reset
process 813
VmHWM: 100 kB
VmRSS: 100 kB
VmSwap: 0 kB
Rss: 104 kB
Pss: 50 kB
Swap: 0 kB
peaks reset
Memory snapshot for GPU 0:
Global total: 999
Proc 812 total: 777
kill Kill 'com.android.camera' (8123), uid 10123, oom_score_adj 900 to free 54321kB rss, 0kB swap
"""


def test_the_sizes_of_all_processes_of_a_session_are_added():
    found = read_lines(SAID)
    assert (found.now_s, found.processes, found.reset) == (1764266000, 2, True)
    assert (found.rss, found.peak_rss) == (1604 * 1024, 2104 * 1024)  # a peak is at least what there is now
    assert (found.swap, found.pss) == (300 * 1024, 950 * 1024)
    assert (found.gpu, found.gpu_peak) == (12288, 20480)
    assert found.kills == (
        "Kill 'com.android.camera' (8123), uid 10123, oom_score_adj 900 to free 54321kB rss, 0kB swap",
    )


def test_gpu_memory_is_as_android_counts_it_where_the_driver_says_nothing():
    found = read_lines("\n".join(line for line in SAID.splitlines() if not line.startswith("gpu ")))
    assert (found.gpu, found.gpu_peak) == (777, None)


@pytest.mark.parametrize("said", ["", "now x\nprocess\n", "process 9\nVmRSS: much kB\n", "process 7\n"])
def test_garbage_and_processes_that_ended_count_nothing(said):
    found = read_lines(said)
    assert (found.rss, found.peak_rss, found.pss, found.reset, found.kills) == (0, 0, None, False, ())


def test_one_process_that_keeps_its_peak_keeps_that_of_all():
    assert not read_lines(SAID.replace("peaks reset\n", "", 1)).reset


READ = MemoryReading(now_s=1, processes=1, rss=10_000_000, peak_rss=30_000_000, swap=0, pss=9_000_000, reset=True)


def rows(*readings):
    return in_order(ModelPhase(name, 0.001, READ, each) for name, each in zip(reversed(PHASES), readings, strict=True))


def test_rows_stand_in_the_order_of_a_models_life_and_the_peak_has_swap():
    found = rows(*(replace(READ, swap=1000 * at) for at in range(5)))
    assert tuple(row["phase"] for row in found) == PHASES
    assert peak_bytes(found) == 30_000_000 + 4000
    assert found[0]["ms"] == 1.0
    assert peak_bytes([]) == 0


@pytest.mark.parametrize(
    ("changed", "on_gpu", "notes"),
    [
        ({}, False, []),
        ({}, True, [NO_GPU]),
        ({"gpu": 5}, True, [NO_GPU_PEAK]),
        ({"gpu": 5, "gpu_peak": 6}, True, []),
        ({"reset": False, "pss": None}, False, [ONE_PEAK, NO_ROLLUP]),
    ],
)
def test_what_a_phone_does_not_tell_is_a_sentence(changed, on_gpu, notes):
    assert list(notes_on([READ, replace(READ, **changed)], on_gpu=on_gpu)) == notes


def test_the_table_has_the_gpu_only_where_a_phone_tells_of_it(capsys):
    found = rows(*(replace(READ, kills=("Kill 'a'",) if at == 1 else ()) for at in range(5)))
    result = {"device": "pixel", "phases": found, "peak_bytes": 30_000_000, "certificate": {"notes": [ONE_PEAK]}}
    print_results([result])
    head, first, *_, peak, killed, note = capsys.readouterr().out.splitlines()
    assert "GPU" not in head
    assert first.split() == ["pixel", "init", "1.000", "ms", "-", "30.0", "MB", "10.0", "MB", "0.0", "MB"]
    assert "at most 30.0 MB" in peak
    assert "Android ended an app in the phase 'first run': Kill 'a'" in killed
    assert ONE_PEAK in note
    print_results([result | {"phases": [row | {"gpu_bytes": 2_000_000} for row in found]}])
    assert "2.0 MB" in capsys.readouterr().out


def test_a_cold_start_is_in_histories_by_its_peak_and_its_first_load_and_run():
    found = values_in(rows(*[READ] * 5))
    assert {name: each["value"] for name, each in found.items()} == {
        "peak memory": peak_bytes(rows(*[READ] * 5)),
        "first load": 0.001,
        "first run": 0.001,
    }
    assert are_values(found)
