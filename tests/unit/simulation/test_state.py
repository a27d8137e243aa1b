import pytest

from farm.common.errors import UserError
from farm.simulation.state import (
    KernelFault,
    PhoneState,
    ThrottlingStatus,
    read_state,
    state_folder,
    write_state,
)


def test_what_is_written_is_read(tmp_path):
    state = PhoneState(
        boot_id="b",
        battery_level=3,
        temps_c={"skin": 50.0},
        throttling=ThrottlingStatus.CRITICAL,
        kernel_fault=KernelFault.SEGFAULT,
        disk_free_bytes=0,
    )
    write_state(tmp_path, state)
    assert read_state(state_folder(tmp_path)) == state
    assert (state_folder(tmp_path) / "kernel_fault").read_text() == "segfault\n"


def test_foreign_fields_are_refused(tmp_path):
    write_state(tmp_path, PhoneState())
    path = state_folder(tmp_path) / "state.json"
    path.write_text(path.read_text().replace('"boot_id"', '"boot_idea"'))
    with pytest.raises(ValueError, match="boot_idea"):
        read_state(state_folder(tmp_path))


@pytest.mark.parametrize("fields", [{"battery_level": 101}, {"clock_scale": 0}, {"temps_c": {"toaster": 90.0}}])
def test_impossible_states(fields):
    with pytest.raises(UserError):
        PhoneState(**fields)
