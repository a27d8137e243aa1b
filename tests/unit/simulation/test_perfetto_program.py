"""A virtual phone's perfetto, run by the shells that run it."""

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from farm.kinds.energy.executor import POLL_S, TRACE_CONFIG, TRACE_UNTIL_ASKED
from farm.measure.rails import read_rails
from farm.simulation.power_rails import RAILS, PowerRails
from farm.simulation.process_tree import read_tree
from farm.simulation.state import state_folder
from farm.simulation.system_image import device_programs
from tests.support.whole_farm import until

SHELLS = [shell for shell in ("mksh", "dash") if shutil.which(shell)]
SHORT = TRACE_CONFIG.format(300, POLL_S * 1e3)
WATTS = {"cpu": 2.0, "gpu": 0.5, "screen": 0.9}

pytestmark = pytest.mark.parametrize("shell", SHELLS)


class Phone:
    """The folders of a phone that its perfetto looks into."""

    def __init__(self, folder, shell):
        self.shell = shutil.which(shell)
        (folder / "dev/farm").mkdir(parents=True)
        (folder / "dev/farm/state").symlink_to(state_folder(folder))
        state_folder(folder).mkdir()
        self.buffers = folder / "data/local/tmp"
        self.buffers.mkdir(parents=True)
        program = folder / "bin/perfetto"
        program.parent.mkdir()
        program.write_text(device_programs(self.shell, str(folder))["perfetto"])
        program.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        self.rails = PowerRails(folder)

    def perfetto(self, config, *words):
        words = words or ("-c", "-", "--txt", "-o", "-")
        return subprocess.run(
            ("perfetto", *words),
            input=config.encode(),
            env=self.environment,
            capture_output=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def phone(tmp_path, shell):
    return Phone(tmp_path, shell)


def test_it_tells_what_the_parts_took(phone):
    phone.rails.set_mode("there")
    phone.rails.count(WATTS, 2.0, 1000.25)
    rails = read_rails(phone.perfetto(SHORT).stdout)
    assert [(rail.name, rail.subsystem) for rail in rails] == [(name, subsystem) for name, subsystem, _ in RAILS]
    assert [rail.counts for rail in rails] == [
        [(1000.25, joules)] for joules in (6_800_000, 4_000_000, 1_000_000, 1_800_000)
    ]
    phone.rails.set_mode("reset")
    phone.rails.count(WATTS, 1.0, 1001.25)
    assert read_rails(phone.perfetto(SHORT).stdout)[1].counts == [(1001.25, 2_000_000)]
    assert list(phone.buffers.iterdir()) == []


@pytest.mark.parametrize("mode", ["", "none"])
def test_a_phone_without_rails_has_a_trace_without_them(phone, mode):
    if mode:
        phone.rails.set_mode("there")
        phone.rails.set_mode(mode)
    done = phone.perfetto(SHORT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout
    assert read_rails(done.stdout) == []


def test_other_sources_tell_of_no_rails(phone):
    phone.rails.set_mode("there")
    phone.rails.count(WATTS, 2.0, 1000.25)
    for config in (SHORT.replace("android.power", "linux.ftrace"), SHORT.replace("rails: true", "rails: false")):
        assert read_rails(phone.perfetto(config).stdout) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (SHORT.replace("battery_poll_ms", "poll_ms"), 'No field named "poll_ms" in proto AndroidPowerConfig'),
        (SHORT.replace("buffers", "data_sources", 1), 'No field named "size_kb" in proto DataSource'),
        (SHORT.replace("300", "soon"), "Expected numeric value for field duration_ms"),
        (SHORT.replace('"android.power"', "android.power"), "Expected string for field name"),
        (SHORT.replace("rails: true", "rails: 1"), "Expected true or false for field collect_power_rails"),
        (SHORT.replace("DISCARD", "KEEP"), "Unexpected value KEEP for enum field fill_policy"),
        (SHORT.removesuffix("}"), "Unexpected end of input"),
        (SHORT + "}", 'Unmatched "}"'),
        ("duration_ms: 300", "No buffers specified"),
    ],
)
def test_a_bad_configuration_is_refused(phone, config, words):
    done = phone.perfetto(config)
    assert done.returncode == 1
    assert words in done.stderr.decode()
    assert "The trace config is invalid, bailing out." in done.stderr.decode()
    assert done.stdout == b""


def test_options_that_it_has_not_are_refused(phone):
    for words in (("-c", "-", "-o", "-"), ("--txt", "-c", "-"), ("-t", "10s", "sched"), ("-c",)):
        assert phone.perfetto(SHORT, *words).returncode == 1


def test_farms_line_ends_it_with_its_input_and_ends_with_it(phone):
    phone.rails.set_mode("there")
    phone.rails.count(WATTS, 2.0, 1000.25)
    words = (phone.shell, "-c", TRACE_UNTIL_ASKED)
    with started(words, phone) as ran:
        until(lambda: buffers(ran.pid))
        told, said = ran.communicate(timeout=60)
        assert (ran.returncode, said) == (0, b"")
        assert len(read_rails(told)) == len(RAILS)
    phone.rails.set_mode("refused")
    with started(words, phone) as ran:
        assert b"Permission denied" in ran.stderr.read()  # to its end, though its input continues
        assert ran.wait(60) == 1


def started(words, phone):
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=phone.environment)


def buffers(shell_pid):
    """The buffers, which have no name, of the traces that a shell started."""
    found = []
    for process in read_tree(shell_pid):
        with suppress(OSError):
            found += [each for each in Path(f"/proc/{process.pid}/fd").iterdir() if "(deleted)" in str(each.readlink())]
    return found
