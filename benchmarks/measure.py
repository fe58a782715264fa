"""Timing that stands on a noisy machine: the forms of one task take turns, and medians count.

The other files of this folder are benchmarks and print; this one is what they share and prints
nothing when it is run.
"""

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch

Form = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds: one slow round does not move it."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> str:
        """Fastest and slowest round; far apart where something else kept the machine busy."""
        return f"{min(self.rounds):.3g}-{max(self.rounds):.3g}"


def interleaved(
    forms: Mapping[str, Form], *, rounds: int, warm_up: int = 1, before: Form | None = None
) -> dict[str, Timing]:
    """Times each form once per round, A B A B, after `warm_up` rounds that do not count.

    before: called ahead of each form, its time not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(warm_up + rounds):
        for name, form in forms.items():
            if before is not None:
                before()
            started = time.perf_counter()
            form()
            seconds[name].append(time.perf_counter() - started)
    return {name: Timing(tuple(measured[warm_up:])) for name, measured in seconds.items()}


def ratio(numerator: float, denominator: float) -> str:
    """How many times greater the one is than the other."""
    return f"{numerator / denominator:.2f}x"


def print_machine() -> None:
    """One line that names the machine, and the load on it before the benchmark began."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    facts = [
        f"machine: {_processor()}",
        f"{os.cpu_count()} cores",
        f"{memory:.0f} GiB",
        torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        f"torch {torch.__version__}",
        f"{torch.get_num_threads()} threads",
        f"load {os.getloadavg()[0]:.1f} at the start",
    ]
    click.echo(", ".join(facts))


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is left-aligned, the others are right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    click.echo(f"\n{title}")
    for name, *cells in (header, rule, *rows):
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        click.echo("  ".join([name.ljust(widths[0]), *aligned]))


def peak_memory(form: Form) -> float:
    """Most memory that this process holds while the form runs, in MiB.

    Where the system cannot forget an earlier peak (outside Linux), that of the process so far.
    """
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        form()
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    reset.write_text("5")  # proc(5): forgets the peak
    form()
    status = Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 2**10


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
