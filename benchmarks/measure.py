"""Timing for noisy machines: the forms of one task alternate, and medians are reported.

The other modules of this folder are benchmarks; this one is shared by them and prints nothing.
"""

import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
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


def alternated(work: Mapping[str, Form]) -> dict[str, tuple[float, float]]:
    """Return the seconds of each form, and those of the processor, which others do not take."""
    spent = {}
    for name, form in work.items():
        started = time.perf_counter(), time.process_time()
        form()
        spent[name] = time.perf_counter() - started[0], time.process_time() - started[1]
    return spent


def print_profile(title: str, form: Form, *, least: float = 0.02) -> None:
    """Print the share of CPU time of each operator of torch while the form runs.

    Operators below `least` are summed as "others".
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        form()
    times = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    total = sum(times.values())
    shares = {name: time / total for name, time in times.items() if time >= least * total}
    rows = [[name, f"{share:.0%}"] for name, share in sorted(shares.items(), key=lambda p: -p[1])]
    rows.append(["others", f"{1 - sum(shares.values()):.0%}"])
    print_table(f"{title}: CPU time by operator", ["", "share"], rows)


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
            f"{base / timing.median:.2f}x",
        ]
        for name, timing in timings.items()
    ]
    header = ["", "s", "s in each round", f"{unit}/s", f"as fast as {reference}"]
    print_table(title, header, rows)


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock and of CPU, and the peak memory in MiB of work and its processes.

    unmapped: the part of `memory` that is not of files, such as a feature store that is mapped.
    count: operations of the work.
    """

    elapsed: float
    cpu: float
    memory: float
    unmapped: float
    count: int

    HEADER: ClassVar = ("time", "CPU time", "peak memory", "without files")

    @property
    def cells(self) -> list[str]:
        """Cells of a table with the columns of HEADER."""
        memory = (f"{figure:,.0f} MiB" for figure in (self.memory, self.unmapped))
        return [f"{self.elapsed:.0f} s", f"{self.cpu:.0f} s", *memory]


def measured(work: Callable[[], int]) -> Cost:
    """Run work that returns its number of operations in a new process; memory: what it adds."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(_measure, work).result()


def _measure(work: Callable[[], int]) -> Cost:
    ended, before = threading.Event(), resident_memory(os.getpid())
    peaks = [before]

    def watch() -> None:
        while not ended.wait(0.02):
            peaks.append(resident_memory(os.getpid()))

    watching = threading.Thread(target=watch)
    watching.start()
    started, cpu = time.perf_counter(), _cpu()
    try:
        count = work()
    finally:  # else the thread would keep a failed process alive for ever
        elapsed, used = time.perf_counter() - started, _cpu() - cpu
        ended.set()
        watching.join()
    peaks.append(resident_memory(os.getpid()))
    memory, unmapped = (max(peak[i] for peak in peaks) - before[i] for i in range(2))
    return Cost(elapsed, used, memory, unmapped, count)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def cost_of(*options: str | Path) -> Cost:
    """Run `a2` with these options as a command."""
    return measured(partial(_run_command, *map(str, options)))


def _run_command(*options: str) -> int:
    command = [sys.executable, "-m", "a2cap.pipeline", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise click.ClickException(f"a2 {options[0]} failed: {ended.stderr}")
    return 1


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
    sizes = [resident_memory(int(child), pages) for child in children]
    sizes.append((resident * page, (resident - shared) * page))
    return sum(total for total, _ in sizes), sum(anonymous for _, anonymous in sizes)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
