"""Parsers of the kernel's files and `ps`: clocks, boot, load, memory, storage, processes, GPU. Pure; never raises.

Clocks of GPUs (kgsl of Adreno, devfreq, Samsung's and Arm's own) and of CPU clusters: drivers/gpu/msm/kgsl_pwrctrl.c
and adreno_sysfs.c of Qualcomm's kernels, Documentation/ABI/testing/sysfs-class-devfreq and
Documentation/admin-guide/pm/cpufreq.rst. `throttling` of kgsl is a switch, not a state: it says 1 on an idle, cool
phone. `thermal_pwrlevel` is the state.

Old toolbox's `ps` has neither groups nor shares of the CPU; its heading names its columns. Words of GPU drivers
are those of kgsl (adreno_dispatch.c, kgsl_iommu.c), kbase (mali_kbase_mmu.c), panfrost, amdgpu under Samsung's sgpu and
PowerVR's services. User builds of Android hide the kernel log from the shell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from farm.bundle.model import LOADER_PREFIX, SERVER_PROGRAM
from farm.common.phone_text import WORD, plain
from farm.devices.health.probe.readings import celsius, clock_hz, files, first_of, integer, leading_integer
from farm.model.health import ClusterReading, Dropped, GpuReading, ProcessReading, SensorGroup, Temperature

KGSL = "kgsl"
_GPU_FILE = re.compile(r"kgsl|mali|gpu|sgpu|/ged/", re.IGNORECASE)
_GPU_DEVFREQ = re.compile(r"/devfreq/[^/]*(?:mali|gpu|kgsl|g3d)[^/]*/|kgsl-3d0/devfreq/|/mali0/device/devfreq/")
_MAX_LEVELS = 64
_PAIR = re.compile(r"\s*([0-9]{1,18})\s+([0-9]{1,18})\s*", re.ASCII)


def parse_gpu(text: str) -> tuple[GpuReading, tuple[Temperature, ...], list[Dropped]]:
    """The reading, the driver's own thermometer as a temperature, and the rejected values."""
    found = files(text)
    values: dict[str, str] = {}  # kgsl comes first in the section; the first of a name counts
    for path, value in found.items():
        folder, _, name = path.rpartition("/")
        if _GPU_DEVFREQ.search(f"{folder}/"):
            values.setdefault(f"devfreq/{name}", value)
        elif _GPU_FILE.search(folder):
            values.setdefault(name, value)
    dropped: list[Dropped] = []

    def clock(*names: str) -> int | None:
        for name in names:
            if name in values:
                if (hertz := clock_hz(values[name])) is not None:
                    return hertz
                dropped.append(Dropped(_source(found), name, values[name][:80], "no GPU's clock in Hz, kHz or MHz"))
        return None

    steps = _steps(values)
    level = leading_integer(values.get("thermal_pwrlevel"))
    now = clock("gpuclk", "devfreq/cur_freq", "clock_mhz", "gpu_clock", "clock")
    degrees = _temperature(values, dropped)
    reading = GpuReading(
        clock_hz=now,
        min_hz=clock("devfreq/min_freq", "gpu_min_clock"),
        max_hz=clock("max_gpuclk", "devfreq/max_freq", "gpu_max_clock"),
        hardware_max_hz=max(steps, default=None),
        governor=_word(first_of((values.get("devfreq/governor"), values.get("gpu_governor")))),
        busy_percent=_busy(values, dropped),
        throttled=level[0] > 0 if level and 0 <= level[0] < _MAX_LEVELS else None,
        power_level=steps.index(now) if now in steps else None,
        celsius=degrees,
    )
    temperatures = (Temperature("gpu", degrees, SensorGroup.GPU, _source(found)),) if degrees is not None else ()
    return reading, temperatures, dropped


def _source(found: Mapping[str, str]) -> str:
    return KGSL if any("kgsl" in path for path in found) else "gpu"


def _steps(values: Mapping[str, str]) -> list[int]:
    """The clocks it can have, the fastest first. kgsl's own list counts: devfreq's may name more than there are."""
    listed = first_of((values.get("gpu_available_frequencies"), values.get("devfreq/available_frequencies")))
    steps = {clock_hz(word) for word in listed.split()[:_MAX_LEVELS]}
    return sorted((step for step in steps if step is not None), reverse=True)


def _word(text: str) -> str:
    return text.strip() if re.fullmatch(r"\s*[A-Za-z][\w.+-]{1,40}\s*", text, re.ASCII) else ""


def _busy(values: Mapping[str, str], dropped: list[Dropped]) -> float | None:
    """Percent: as printed, else busy and total time of the last interval. `0 0` is a GPU that had no interval."""
    for name in ("gpu_busy_percentage", "gpu_busy", "gpu_utilization", "utilization", "devfreq/gpu_load"):
        if found := leading_integer(values.get(name)):
            if 0 <= found[0] <= 100 and found[1] in ("", "%"):
                return float(found[0])
            dropped.append(Dropped(KGSL, name, values[name][:80], "not a percentage"))
    pair = _PAIR.fullmatch(values.get("gpubusy", ""))
    if pair is None or int(pair[2]) == 0:
        return None
    percent = 100 * int(pair[1]) / int(pair[2])
    if percent > 100:
        dropped.append(Dropped(KGSL, "gpubusy", values["gpubusy"].strip(), "busier than time went by"))
        return None
    return round(percent, 1)


def _temperature(values: Mapping[str, str], dropped: list[Dropped]) -> float | None:
    for name in ("temp", "gpu_tmu"):
        if found := leading_integer(values.get(name)):
            degrees = celsius(found[0], (1000, 10, 1))
            if degrees is None:
                dropped.append(Dropped(KGSL, name, values[name][:80], "no temperature in any unit, or in two"))
            return round(degrees, 1) if degrees is not None else None
    return None


CPUFREQ = "cpufreq"
_MIN_KHZ, _MAX_KHZ = 10_000, 10_000_000
_MAX_CORES = 64
_MAX_CLUSTERS = 16
_MAX_LIST = 400  # characters: 64 cores, each by its number, are 182
_FOLDER = re.compile(r"(.*/(?:policy|cpu)([0-9]{1,3})(?:/cpufreq)?)/([a-z_]+)", re.ASCII)


def parse_cpu(text: str) -> tuple[tuple[ClusterReading, ...], list[Dropped]]:
    """The clusters by their first core. Of old kernels' one folder per core, one per cluster counts."""
    folders: dict[str, dict[str, str]] = {}
    first_core: dict[str, int] = {}
    for path, value in files(text).items():
        if found := _FOLDER.fullmatch(path):
            folders.setdefault(found[1], {})[found[3]] = value
            first_core[found[1]] = int(found[2])
    dropped: list[Dropped] = []
    clusters: dict[tuple[int, ...], ClusterReading] = {}
    for folder, values in folders.items():
        listed = values.get("related_cpus") or values.get("affected_cpus") or str(first_core[folder])
        cores = _cores(listed)
        if not cores:
            dropped.append(Dropped(CPUFREQ, folder, listed[:80], "not a list of cores"))
            continue
        clock = {name: _khz(folder, name, values, dropped) for name in _CLOCKS}
        governor = values.get("scaling_governor", "").strip()
        reading = ClusterReading(
            cores=cores,
            khz=clock["scaling_cur_freq"],
            min_khz=clock["scaling_min_freq"],
            max_khz=clock["scaling_max_freq"],
            hardware_max_khz=clock["cpuinfo_max_freq"],
            governor=governor if re.fullmatch(r"[A-Za-z][\w.+-]{1,40}", governor, re.ASCII) else "",
        )
        clusters.setdefault(cores, reading)
    return tuple(clusters[cores] for cores in sorted(clusters)[:_MAX_CLUSTERS]), dropped


_CLOCKS = ("scaling_cur_freq", "scaling_min_freq", "scaling_max_freq", "cpuinfo_max_freq")


def _khz(folder: str, name: str, values: dict[str, str], dropped: list[Dropped]) -> int | None:
    value = integer(values.get(name))
    if value is None or _MIN_KHZ <= value <= _MAX_KHZ:
        return value
    dropped.append(Dropped(CPUFREQ, f"{folder}/{name}", str(value), "no core's clock in kHz"))
    return None


def _cores(text: str) -> tuple[int, ...]:
    """`0 1 2 3`, `0-3`, `0-1,4`."""
    if len(text) > _MAX_LIST:
        return ()
    cores: set[int] = set()
    for word in re.split(r"[\s,]+", text.strip()):
        found = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", word, re.ASCII)
        if found is None or int(found[2] or found[1]) >= _MAX_CORES:
            return ()
        cores |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(cores))


MAX_BUSIEST = 10
MAX_OF_SERVER = 64  # a session is a process, and a phone has one at a time
_NOTED = re.compile(r"^(self|server|supervisor)=([0-9]{1,9})[ \t]*$", re.MULTILINE | re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
_SHARE = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,3})?", re.ASCII)
_RENAMED = {"NAME": "NAME", "CMD": "NAME", "ARGS": "NAME", "CMDLINE": "NAME", "S": "S", "RSS": "RSS"}


def parse_processes(text: str) -> tuple[tuple[ProcessReading, ...], tuple[ProcessReading, ...]]:
    """The busiest (without kernel threads and the probe itself), and the server's: supervisor, server, sessions."""
    noted = {name: int(number) for name, number in _NOTED.findall(text)}
    own, server, supervisor = (noted.get(name, -1) for name in ("self", "server", "supervisor"))
    rows = {row.pid: row for row in _rows(text)}
    ours = {
        pid
        for pid, row in rows.items()
        if row.name == SERVER_PROGRAM or pid in (server, supervisor) or row.pgid == server > 1 or row.ppid == server > 1
    }
    group = tuple(_by_program(row) for pid, row in sorted(rows.items()) if pid in ours)[:MAX_OF_SERVER]
    others = [row for row in rows.values() if own not in (row.pid, row.ppid) and not row.name.startswith("[")]
    others.sort(key=lambda row: row.cpu_percent or 0.0, reverse=True)
    return tuple(row for row in others if row.cpu_percent)[:MAX_BUSIEST], group


def lists_processes(text: str) -> bool:
    """Whether `ps` answered. Old ones tell no share of the CPU: then no process is known to be busy."""
    return bool(_rows(text))


def _by_program(row: ProcessReading) -> ProcessReading:
    """A server that its bundle's own loader started has the loader's name."""
    return replace(row, name=SERVER_PROGRAM) if row.name.startswith(LOADER_PREFIX) else row


def _rows(text: str) -> list[ProcessReading]:
    columns: dict[str, int] = {}
    rows = []
    for line in text.splitlines():
        words = line.split()
        if "PID" in words and "PPID" in words:
            columns = {_RENAMED.get(word, word): at for at, word in enumerate(words)}
        elif columns and (row := _row(words, columns)) is not None:
            rows.append(row)
    return rows


def _name(words: Sequence[str]) -> str:
    """Without the path; a kernel thread's ("kworker/0:0") has none."""
    name = " ".join(words)
    return plain(name.rpartition("/")[2] if name.startswith("/") else name, WORD)


def _row(words: Sequence[str], columns: dict[str, int]) -> ProcessReading | None:
    name_at = columns.get("NAME", len(columns))
    if "S" not in columns and "PC" in columns:  # toolbox heads the state with nothing: it stands before the name
        state_at, name_at = name_at, name_at + 1
    else:
        state_at = columns.get("S", -1)
    if len(words) <= name_at:
        return None

    def number(column: str) -> int:
        at = columns.get(column, -1)
        return int(words[at]) if 0 <= at < len(words) and _NUMBER.fullmatch(words[at]) else -1

    pid, rss = number("PID"), number("RSS")
    if pid < 0 or number("PPID") < 0:
        return None
    share_at = columns.get("%CPU", -1)
    share = words[share_at] if share_at >= 0 else ""
    state = words[state_at] if state_at >= 0 else ""
    return ProcessReading(
        pid=pid,
        ppid=number("PPID"),
        pgid=number("PGID"),
        state=state[:1] if state[:1].isalpha() else "",
        cpu_percent=float(share) if _SHARE.fullmatch(share) else None,
        rss_bytes=rss << 10 if rss >= 0 else None,
        name=_name(words[name_at:]),
    )


_BOOT = re.compile(r"^boot_id=([0-9A-Za-z-]{1,64})[ \t]*$", re.MULTILINE)
_UPTIME = re.compile(r"^(?:/proc/uptime=)?[ \t]*([0-9]{1,10}\.[0-9]{1,3}) [0-9]{1,12}\.[0-9]{1,3}[ \t]*$", re.MULTILINE)
_LOAD = re.compile(r"^/proc/loadavg=([0-9]{1,5}\.[0-9]{1,3}) ", re.MULTILINE)
# toybox " 12:56:15 up 11 days, 10 min,  0 users,  load average: 50.39"; toolbox "up time: 2 days, 12:06:52, idle"
_WORDS = re.compile(
    r"\bup(?: time:)? +(?:([0-9]{1,5}) days?, *)?(?:([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?|([0-9]{1,2}) min)"
)
_AVERAGE = re.compile(r"load averages?: *([0-9]{1,5}\.[0-9]{1,3})")


def parse_boot(text: str) -> tuple[str, float | None, float | None]:
    """The boot's id ("": unknown), seconds since then, and the load average of a minute.

    A load of 50 on an idle phone is common: tasks that wait in drivers count.
    """
    boot, load = _BOOT.search(text), _LOAD.search(text) or _AVERAGE.search(text)
    return boot[1] if boot else "", _uptime_s(text), float(load[1]) if load else None


def _uptime_s(text: str) -> float | None:
    if found := _UPTIME.search(text):
        return float(found[1])
    if found := _WORDS.search(text):
        days, hours, minutes, seconds, only_minutes = (int(group or 0) for group in found.groups())
        return float(86400 * days + 3600 * hours + 60 * (minutes + only_minutes) + seconds)
    return None


MAX_LINES = 20
_MAX_CHARACTERS = 300  # of a line
# Of a driver's lines only those with its words for a fault. Two patterns, not `driver.*fault`: that takes the square of
# a line's length where a phone names the driver over and over.
_DRIVERS = tuple(
    (re.compile(driver, re.IGNORECASE), re.compile(fault, re.IGNORECASE))
    for driver, fault in (
        (r"kgsl", r"\bfault\b|\bhang\b|timed? ?out|opcode error|failed to idle"),
        (r"mali|panfrost", r"\bfault|\bhang\b|timed? ?out|soft-stop|hard-stop"),
        (r"sgpu|amdgpu|drm", r"ring \w{1,40} timeout|GPU reset|GPU fault"),
        (r"PVR", r"\bHWR\b|lockup|page fault"),
    )
)
_FAULT = re.compile(r"gpu fault|GPU PAGE FAULT|MISC: GPU hang|(?:Unhandled )?Page fault in AS[0-9]", re.IGNORECASE)
_HARMLESS = re.compile(r"fault[-_ ](?:tolerance|detect\w*|policy)|default|thermal|regulator|opp table", re.IGNORECASE)
_UNREADABLE = re.compile(r"permitted|denied|not found|inaccessible|No such", re.IGNORECASE)


def parse_kernel(text: str) -> tuple[tuple[str, ...], bool]:
    """The newest such lines, newest last, and whether the log could be read."""
    lines = [plain(line.strip(), _MAX_CHARACTERS) for line in text.splitlines()]
    if any(_UNREADABLE.search(line.partition("dmesg: ")[2]) for line in lines):
        return (), False
    faults = [line for line in lines if _tells_of_fault(line) and not _HARMLESS.search(line)]
    return tuple(faults[-MAX_LINES:]), True


def _tells_of_fault(line: str) -> bool:
    if _FAULT.search(line):
        return True
    return any((at := driver.search(line)) and fault.search(line, at.end()) for driver, fault in _DRIVERS)


_MEMINFO = re.compile(r"^(\w+):[ \t]+([0-9]{1,12}) kB", re.MULTILINE | re.ASCII)
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)([KMGT]?)", re.ASCII)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_BLOCK = re.compile(r"\b(1K|512|1024)-blocks\b")
_MAX_BYTES = 1 << 44  # 16 TiB


def parse_meminfo(text: str) -> tuple[int | None, int | None]:
    """Total and available bytes; free, buffers and cache stand for the latter on kernels before 3.14."""
    found: dict[str, int] = {}
    for name, value in _MEMINFO.findall(text):
        found.setdefault(name, int(value) << 10)
    total, available = found.get("MemTotal"), found.get("MemAvailable")
    if available is None and "MemFree" in found:
        available = sum(found.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
    if not total or (available is not None and available > total):
        return total or None, None
    return total, available


def parse_data(text: str) -> tuple[int | None, int | None]:
    """Total and free bytes of /data, from `df /data` or the /data line of any `df`: toybox's, busybox's, toolbox's."""
    block = _BLOCK.search(text)
    scale = {"512": 512}.get(block[1], 1 << 10) if block else 0  # 0: amounts carry their unit
    # busybox breaks a line behind a long device name.
    lines = re.sub(r"\n[ \t]{10,}(?=[0-9])", " ", text).splitlines()
    header = next((line for line in lines if "Filesystem" in line), "")
    for line in lines:
        words = line.split()
        if "/data" not in words:
            continue
        at = words.index("/data")
        if at == 0 and len(words) >= 4:  # toolbox: mount point, size, used, free, block size
            total, free = _bytes(words[1], 0), _bytes(words[3], 0)
        elif at >= 4:  # device, size, used, available, use%, mount point
            total, free = _bytes(words[at - 4], scale), _bytes(words[at - 2], scale)
        else:
            continue
        if total and free is not None and free <= total <= _MAX_BYTES:
            return total, free
    return _behind_another_mount(lines, header, scale)


def _behind_another_mount(lines: list[str], header: str, scale: int) -> tuple[int | None, int | None]:
    """`df /data` names the mount point that holds it (a container's, a phone without a /data of its own)."""
    rows = [line.split() for line in lines if line.strip() and line != header]
    if not header or len(rows) != 1 or len(rows[0]) != 6 or not rows[0][5].startswith("/"):
        return None, None
    total, free = _bytes(rows[0][1], scale), _bytes(rows[0][3], scale)
    return (total, free) if total and free is not None and free <= total <= _MAX_BYTES else (None, None)


def _bytes(word: str, scale: int) -> int | None:
    """An amount with its unit, or blocks of `scale` bytes."""
    found = _AMOUNT.fullmatch(word)
    if found is None:
        return None
    if not found[2] and not scale and found[1] != "0":
        return None  # a bare number without a heading has no unit
    return int(float(found[1]) * (_UNITS[found[2]] if found[2] else scale or 1))
