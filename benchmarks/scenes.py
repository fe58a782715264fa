"""`a2 scenes` by one process against one per core, the start of Python included.

Each form is a command of its own, so that the processes that draw load no more than they do for a
user: started from here, each would first import what benchmarks share.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # run as a file, a script finds its neighbours without the folder's name
    from benchmarks.measure import Timing, interleaved, print_machine, print_table, ratio
else:
    from measure import Timing, interleaved, print_machine, print_table, ratio

MANY = 20_000
"""Images whose time is told: two cores are to write them in less than five minutes."""

ALONE = "1 process"


def write(folder: Path, *, count: int, workers: int) -> None:
    """Runs the command."""
    command = [sys.executable, "-m", "a2cap.pipeline", "scenes", str(folder)]
    options = ["--count", str(count), "--workers", str(workers)]
    subprocess.run([*command, *options], check=True, capture_output=True)


def time_writing(folder: Path, *, count: int, rounds: int) -> dict[str, Timing]:
    """Each number of processes in turn, into a folder that is not there."""
    several = max(os.cpu_count() or 1, 2)
    forms = {
        ALONE: partial(write, folder, count=count, workers=1),
        f"{several} processes": partial(write, folder, count=count, workers=several),
    }
    emptied = partial(shutil.rmtree, folder, ignore_errors=True)
    return interleaved(forms, rounds=rounds, warm_up=0, before=emptied)


def print_timings(timings: Mapping[str, Timing], *, count: int) -> None:
    """Rates, the time of MANY images at each, and how many times one process's it is."""
    rows = [
        [
            name,
            f"{count / timing.median:,.0f}",
            timing.spread,
            f"{timing.median * MANY / count:,.0f} s",
            ratio(timings[ALONE].median, timing.median),
        ]
        for name, timing in timings.items()
    ]
    header = ["", "images/s", "s per round", f"{MANY:,} images", "is faster by"]
    print_table(f"writing {count:,} scenes", header, rows)


@click.command()
@click.option("--quick", is_flag=True, help="A few images: shows that it runs, not how fast.")
def main(quick: bool) -> None:
    """Time writing scenes of 160 pixels, with all their files."""
    print_machine()
    count, rounds = (40, 1) if quick else (2000, 3)
    with tempfile.TemporaryDirectory() as folder:
        timings = time_writing(Path(folder) / "scenes", count=count, rounds=rounds)
    print_timings(timings, count=count)


if __name__ == "__main__":
    main()
