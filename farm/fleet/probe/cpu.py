"""Clusters' clocks and governors: cpufreq policies (Documentation/admin-guide/pm/cpufreq.rst). Pure; never raises."""

from __future__ import annotations

import re

from farm.core.health import ClusterReading, Dropped
from farm.fleet.probe.readings import files, integer

SOURCE = "cpufreq"
_MIN_KHZ, _MAX_KHZ = 10_000, 10_000_000
_MOST_CORES = 64
_MOST_CLUSTERS = 16
_LONGEST_LIST = 400  # characters: 64 cores, each by its number, are 182
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
            dropped.append(Dropped(SOURCE, folder, listed[:80], "not a list of cores"))
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
    return tuple(clusters[cores] for cores in sorted(clusters)[:_MOST_CLUSTERS]), dropped


_CLOCKS = ("scaling_cur_freq", "scaling_min_freq", "scaling_max_freq", "cpuinfo_max_freq")


def _khz(folder: str, name: str, values: dict[str, str], dropped: list[Dropped]) -> int | None:
    value = integer(values.get(name))
    if value is None or _MIN_KHZ <= value <= _MAX_KHZ:
        return value
    dropped.append(Dropped(SOURCE, f"{folder}/{name}", str(value), "no core's clock in kHz"))
    return None


def _cores(text: str) -> tuple[int, ...]:
    """`0 1 2 3`, `0-3`, `0-1,4`."""
    if len(text) > _LONGEST_LIST:
        return ()
    cores: set[int] = set()
    for word in re.split(r"[\s,]+", text.strip()):
        found = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", word, re.ASCII)
        if found is None or int(found[2] or found[1]) >= _MOST_CORES:
            return ()
        cores |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    return tuple(sorted(cores))
