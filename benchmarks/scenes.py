"""Time of `a2 scenes` with one process and with one per core, including the start of Python.

Each form is a separate command, so that the drawing processes import no more than for a user;
forked from here, each would first import the benchmarks.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import click

from benchmarks.measure import Timing, interleaved, print_machine, print_timings

MANY = 20_000
"""Number of images whose time is reported; the goal is five minutes on two cores."""

ALONE = "1 process"


def write(folder: Path, *, count: int, workers: int) -> None:
    """Run the command."""
    command = [sys.executable, "-m", "a2cap.pipeline", "scenes", str(folder)]
    options = ["--count", str(count), "--workers", str(workers)]
    subprocess.run([*command, *options], check=True, capture_output=True)


def time_writing(folder: Path, *, count: int, rounds: int) -> dict[str, Timing]:
    """Time each number of processes in turn, into a new folder."""
    several = max(os.cpu_count() or 1, 2)
    forms = {
        ALONE: partial(write, folder, count=count, workers=1),
        f"{several} processes": partial(write, folder, count=count, workers=several),
    }
    emptied = partial(shutil.rmtree, folder, ignore_errors=True)
    return interleaved(forms, rounds=rounds, warm_up=0, before=emptied)


@click.command()
@click.option("--quick", is_flag=True, help="Use a few images, only to check that it runs.")
def main(quick: bool) -> None:
    """Time writing scenes of 160 pixels, with all their files."""
    print_machine()
    count, rounds = (40, 1) if quick else (2000, 3)
    with tempfile.TemporaryDirectory() as folder:
        timings = time_writing(Path(folder) / "scenes", count=count, rounds=rounds)
    print_timings(f"writing {count:,} scenes", timings, reference=ALONE, count=count)
    *_, several = timings.values()
    click.echo(f"{MANY:,} images: {several.median * MANY / count:,.0f} s")


if __name__ == "__main__":
    main()
