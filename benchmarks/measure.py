"""Timing for noisy machines: the forms of one task alternate, and medians are reported.

The other modules of this folder are benchmarks; this one is shared by them and prints nothing.
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
    """Seconds per round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds, which one slow round does not change."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> str:
        """Fastest and slowest round; far apart if other programs used the machine."""
        return f"{min(self.rounds):.3g}-{max(self.rounds):.3g}"


def interleaved(
    forms: Mapping[str, Form], *, rounds: int, warm_up: int = 1, before: Form | None = None
) -> dict[str, Timing]:
    """Time each form once per round, A B A B, after `warm_up` rounds that are not counted.

    before: called before each form, not timed.
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
    """Format how many times greater the numerator is."""
    return f"{numerator / denominator:.2f}x"


def print_machine() -> None:
    """Print one line with the machine and its load before the benchmark."""
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
    """Print a table; the first column is left-aligned, the others are right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    click.echo(f"\n{title}")
    for name, *cells in (header, rule, *rows):
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        click.echo("  ".join([name.ljust(widths[0]), *aligned]))


def peak_memory(form: Form) -> float:
    """Return the peak memory of this process while the form runs, in MiB.

    Outside Linux an earlier peak cannot be reset; it is included there.
    """
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        form()
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    reset.write_text("5")  # proc(5): resets the peak
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
