"""How much memory this process may still take."""

from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Limit and use of the container's control group, versions 2 and 1."""


def available_memory() -> int | None:
    """Bytes that the machine and the container still have; None where the system does not say."""
    left = [_machine(), *(_left(limit, used) for limit, used in _LIMITS)]
    return min((count for count in left if count is not None), default=None)


def _machine() -> int | None:
    try:
        lines = _MEMORY.read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    return int(available.split()[1]) * 1024


def _left(limit: Path, used: Path) -> int | None:
    """None also for the word `max`: no limit."""
    try:
        return max(0, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):
        return None
