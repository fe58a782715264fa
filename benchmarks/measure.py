"""Timing for noisy machines: the forms of one task alternate, and medians are reported.

The other modules of this folder are benchmarks; this one is shared by them and prints nothing.
"""

import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import click
import torch
from torch.utils.flop_counter import FlopCounterMode

Form = Callable[[], object]

_PROC = Path("/proc")


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


def profiled(form: Form, *, least: float = 0.02) -> dict[str, float]:
    """Return the share of CPU time of each operator of torch while the form runs, largest first.

    Operators below `least` are summed as "others".
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        form()
    times = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    total = sum(times.values())
    shares = {name: time / total for name, time in times.items() if time >= least * total}
    ordered = dict(sorted(shares.items(), key=lambda pair: -pair[1]))
    return {**ordered, "others": 1 - sum(shares.values())}


def print_profile(title: str, form: Form) -> None:
    """Print the share of CPU time of each operator."""
    rows = [[name, f"{share:.0%}"] for name, share in profiled(form).items()]
    print_table(f"{title}: CPU time by operator", ["", "share"], rows)


def ratio(numerator: float, denominator: float) -> str:
    """Format how many times greater the numerator is."""
    return f"{numerator / denominator:.2f}x"


def machine() -> list[str]:
    """Return the processor, cores, memory, GPU, version of torch, threads, and load now."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return [
        _processor(),
        f"{os.cpu_count()} cores",
        f"{memory:.0f} GiB",
        torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU",
        f"torch {torch.__version__}",
        f"{torch.get_num_threads()} threads",
        f"load {os.getloadavg()[0]:.1f} at the start",
    ]


def print_machine() -> None:
    """Print one line with the machine and its load before the benchmark."""
    click.echo(f"machine: {', '.join(machine())}")


def floating_operations(form: Form) -> int:
    """Count additions and multiplications in all matrix products and convolutions of a form."""
    with FlopCounterMode(display=False) as counter:
        form()
    return int(counter.get_total_flops())


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is left-aligned, the others are right-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    click.echo(f"\n{title}")
    for name, *cells in (header, rule, *rows):
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        click.echo("  ".join([name.ljust(widths[0]), *aligned]))


def print_timings(
    title: str, timings: Mapping[str, Timing], *, reference: str, count: int, unit: str = "images"
) -> None:
    """Print a row per form: seconds, `count` per second, and its speed relative to `reference`."""
    base = timings[reference].median
    rows = [
        [
            name,
            f"{timing.median:.4f}",
            timing.spread,
            f"{count / timing.median:,.1f}",
            ratio(base, timing.median),
        ]
        for name, timing in timings.items()
    ]
    header = ["", "s", "s in each round", f"{unit}/s", f"as fast as {reference}"]
    print_table(title, header, rows)


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


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock and of CPU, and the peak memory in MiB of a command with its children.

    own: the part of `memory` that is not of files, such as a feature store that is mapped.
    """

    elapsed: float
    cpu: float
    memory: float
    own: float

    HEADER: ClassVar = ("time", "CPU time", "peak memory", "without files")

    @property
    def cells(self) -> list[str]:
        """Cells of a table with the columns of HEADER."""
        memory = (f"{figure:,.0f} MiB" for figure in (self.memory, self.own))
        return [f"{self.elapsed:.0f} s", f"{self.cpu:.0f} s", *memory]


def cost_of(*options: str | Path) -> Cost:
    """Run `a2` with these options, and add up the memory of its processes twenty times a second."""
    started = time.perf_counter()
    running = subprocess.Popen(
        [sys.executable, "-m", "a2cap.pipeline", *map(str, options)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    memory = own = 0.0
    while True:
        ended, status, usage = os.wait4(running.pid, os.WNOHANG)
        if ended:
            break
        found = resident_memory(running.pid)
        memory, own = max(memory, found[0]), max(own, found[1])
        time.sleep(0.05)
    elapsed = time.perf_counter() - started
    running.returncode = os.waitstatus_to_exitcode(status)
    with running:  # closes the pipe
        messages = running.communicate()[1]
    if running.returncode:
        raise click.ClickException(f"a2 {options[0]} failed: {messages}")
    return Cost(elapsed, usage.ru_utime + usage.ru_stime, memory, own)


def resident_memory(process: int, parents: str = "") -> tuple[float, float]:
    """Return the resident MiB of a process and its descendants, and those that are not files.

    parents: the pages of its parent, as its file statm has them.
    """
    folder = _PROC / str(process)
    try:
        pages = (folder / "statm").read_text()
        children = (folder / "task" / str(process) / "children").read_text().split()
    except OSError:  # it ended meanwhile
        return 0.0, 0.0
    if pages == parents:  # the parent's own memory, which a child has between vfork and exec
        return 0.0, 0.0
    _, resident, shared, *_ = map(int, pages.split())
    page = os.sysconf("SC_PAGE_SIZE") / 2**20
    found = [resident_memory(int(child), pages) for child in children]
    found.append((resident * page, (resident - shared) * page))
    return sum(every for every, _ in found), sum(own for _, own in found)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
