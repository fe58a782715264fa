"""How long torch's threads look out for work before they sleep, on a CPU.

A thread that sleeps is woken late: on an idle machine beam search took 1.5 times as long, a step of
training 1.2 times. One that looks out for long, as is the default, takes the core from the one that
it waits for where there are more threads than cores: beam search took 4 times as long, and training
up to ten. Measured on 2 cores with GNU's OpenMP, which torch's wheels for Linux contain.
"""

import os
import time
from collections.abc import MutableMapping
from pathlib import Path

_LOADS = Path("/proc/loadavg")
_LOOKS = "20000"
"""Before a thread sleeps; about 0.2 ms. Beside another program that cost up to 2.6 times, against
4 times with the default."""


def set_waiting(environment: MutableMapping[str, str]) -> None:
    """Threads sleep at once on a busy machine, and look out for work first on an idle one.

    environment: `os.environ`, before torch is loaded. What a user has set there stays.
    """
    if "OMP_WAIT_POLICY" in environment or "GOMP_SPINCOUNT" in environment:
        return
    environment["OMP_WAIT_POLICY"] = "PASSIVE"
    if _is_idle():
        environment["GOMP_SPINCOUNT"] = _LOOKS


def _is_idle() -> bool:
    """Whether beside this process at most every fourth core has work; no where nobody knows.

    The least of some looks: what has work for a moment only is in nobody's way.
    """
    try:
        running = min(_running() for _ in range(5))
    except (OSError, IndexError, ValueError):
        return False
    return running - 1 <= (os.cpu_count() or 1) / 4


def _running() -> int:
    """Threads that have work now, this one among them."""
    time.sleep(0.002)
    return int(_LOADS.read_text().split()[3].split("/")[0])
