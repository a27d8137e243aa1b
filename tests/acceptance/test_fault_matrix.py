"""The fault matrix (benchmarks/fault_table.py): outcome and order of events of each fault; the seconds are the
benchmark's. All phones of one farm suffer side by side; a bystander's session computes meanwhile."""

import pytest

from benchmarks.fault_run import QUICK, matrix_farm, play, possible
from benchmarks.fault_table import FAULTS
from tests.support.whole_farm import leftovers

SHORT = [fault for fault in FAULTS if not fault.slow]


@pytest.fixture(scope="module")
def outcomes():
    faults = [fault for fault in SHORT if not possible(fault)]
    with matrix_farm(QUICK) as farm:
        played = play(farm, faults)
        farm.daemon.stop()
        log = farm.daemon.log.read_text(errors="replace")
    assert leftovers(farm.folder) == []
    assert "Traceback" not in log, log
    return {outcome.fault.name: outcome for outcome in played}


@pytest.mark.parametrize("fault", SHORT, ids=lambda fault: fault.name)
def test_a_fault_ends_as_the_table_says(fault, outcomes):
    if why := possible(fault):
        pytest.skip(why)
    outcome = outcomes[fault.name]
    assert outcome.wrong == ""
    assert outcome.actions == fault.actions
    assert outcome.spared


def test_the_table_names_each_fault_once():
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 40
