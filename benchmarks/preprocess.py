"""Time and peak memory of `a2 preprocess` on all 616,767 captions of COCO 2014.

The captions are those in the jar of SPICE, which pycocoevalcap installs. Their splits are not
Karpathy's: 5,000 images of val2014 each are val and test. CPU time is that of all processes, JVM
included; it depends less on other programs than the time on the clock.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import click

from a2cap.data.annotations.karpathy import write_karpathy
from a2cap.data.image_ids import image_id
from a2cap.pipeline.metrics.tokenization import pycocoevalcap_folder
from benchmarks.measure import print_machine, print_table

HELD_OUT = 5_000
"""Images of val and of test."""


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock and of CPU, and the largest sum of resident memory in MiB."""

    elapsed: float
    cpu: float
    memory: float


def write_annotations(folder: Path, *, count: int | None) -> tuple[Path, int]:
    """Write dataset_coco.json of `count` images, all if None; return its path and its captions."""
    files, ids = [], []
    with zipfile.ZipFile(pycocoevalcap_folder() / "spice" / "spice-1.0.jar") as archive:
        for name in ("captions_val2014.json", "captions_train2014.json")[
            : 2 if count is None else 1
        ]:
            document = json.loads(archive.read(f"coco/annotations/{name}"))
            images = document["images"][:count]
            numbers = {image["id"] for image in images}
            texts = [item for item in document["annotations"] if item["image_id"] in numbers]
            files.append(folder / name)
            files[-1].write_text(json.dumps({"images": images, "annotations": texts}))
            ids += [image_id(image["file_name"]) for image in images]
    size = min(HELD_OUT, len(ids) // 4)
    path = folder / "dataset_coco.json"
    counts = write_karpathy(files, path, val=ids[:size], test=ids[size : 2 * size])
    return path, counts["captions"]


def preprocess(annotations: Path, artifacts: Path) -> Cost:
    """Run the command, and add up the memory of its processes twenty times a second."""
    command = [sys.executable, "-m", "a2cap.pipeline", "preprocess", "--artifacts", str(artifacts)]
    started = time.perf_counter()
    running = subprocess.Popen(
        [*command, "--set", f"data.annotations={annotations}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    memory = 0.0
    while True:
        ended, status, usage = os.wait4(running.pid, os.WNOHANG)
        if ended:
            break
        memory = max(memory, _resident(running.pid))
        time.sleep(0.05)
    elapsed = time.perf_counter() - started
    running.returncode = os.waitstatus_to_exitcode(status)
    with running:  # closes the pipe
        messages = running.communicate()[1]
    if running.returncode:
        raise click.ClickException(f"a2 preprocess failed: {messages}")
    return Cost(elapsed, usage.ru_utime + usage.ru_stime, memory)


def _resident(process: int) -> float:
    """Return the resident MiB of a process and its descendants."""
    folder = Path("/proc", str(process))
    try:
        pages = int((folder / "statm").read_text().split()[1])
        children = (folder / "task" / str(process) / "children").read_text().split()
    except OSError:  # it ended meanwhile
        return 0.0
    own = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return own + sum(_resident(int(child)) for child in children)


@click.command()
@click.option("--quick", is_flag=True, help="2,000 images.")
def main(quick: bool) -> None:
    """Preprocess all captions of COCO 2014 once."""
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        annotations, captions = write_annotations(Path(folder), count=2_000 if quick else None)
        cost = preprocess(annotations, Path(folder) / "artifacts")
    row = [f"{captions:,}", f"{cost.elapsed:.0f} s", f"{cost.cpu:.0f} s", f"{cost.memory:,.0f} MiB"]
    header = ["", "captions", "time", "CPU time", "peak memory"]
    print_table("a2 preprocess", header, [["all processes", *row]])


if __name__ == "__main__":
    main()
