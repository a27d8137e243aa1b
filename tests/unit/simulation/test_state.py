import pytest

from farm.common.errors import UserError
from farm.simulation.physics import throttling_of
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


def test_writing_leaves_no_other_files(tmp_path):
    write_state(tmp_path, PhoneState())
    write_state(tmp_path, PhoneState(battery_level=1))
    assert sorted(path.name for path in state_folder(tmp_path).iterdir()) == [
        "driver_fault",
        "kernel_fault",
        "kernel_log",
        "state.json",
    ]


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


def test_throttling_grows_with_heat():
    steps = [throttling_of(skin_c) for skin_c in range(20, 60)]
    assert [status for status, _ in steps] == sorted(status for status, _ in steps)
    assert [scale for _, scale in steps] == sorted((scale for _, scale in steps), reverse=True)
    assert throttling_of(30) == (ThrottlingStatus.NONE, 1.0)
    assert throttling_of(60)[0] is ThrottlingStatus.SHUTDOWN
