"""Available memory of the machine and of its container."""

from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and usage of the container's control group, versions 2 and 1."""
_STATISTICS = "memory.stat"


def available_memory() -> int | None:
    """Return the bytes that machine and container still have; None where the system hides it."""
    free = []
    with suppress(OSError, StopIteration):
        lines = _MEMINFO.read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        free.append(int(available.split()[1]) * 1024)  # "kB" in the file means KiB
    for limit, used in _CGROUPS:
        with suppress(OSError, ValueError):  # int("max") fails: the group has no limit
            kept = int(used.read_text()) - _cached(used.with_name(_STATISTICS))
            free.append(max(0, int(limit.read_text()) - kept))
    return min(free, default=None)


def _cached(statistics: Path) -> int:
    """Return the bytes of a control group's usage that are free when somebody needs them."""
    with suppress(OSError):
        lines = statistics.read_text().splitlines()
        usage = {line.split()[0]: int(line.split()[1]) for line in lines}
        return usage.get("total_inactive_file", usage.get("inactive_file", 0))
    return 0
