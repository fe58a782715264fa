"""Four local workers of one plan, killed at random until all is done, against a single process.

Draws scenes, extracts them once without a plan, then with `a2 extract --plan` in four processes of
which random ones are killed with SIGKILL or SIGTERM and replaced, and compares the digests:

    python -m benchmarks.plan_workers --weights FILE [--scenes 2000] [--kills 20]
"""

import argparse
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from a2cap.data.features.parts import read_done
from a2cap.data.features.store import FeatureStore
from a2cap.pipeline.config import load_config
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.extraction.convert import convert
from a2cap.pipeline.extraction.plan.extract_plan import PlanWorker
from a2cap.pipeline.extraction.plan.progress import plan_progress

WORKERS = 4
A2 = [sys.executable, "-m", "a2cap.pipeline"]


def main() -> None:
    """Run and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True, help="Value of extract.weights.")
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="Mean time between kills.")
    parser.add_argument("--set", action="append", default=[], help="More settings.")
    options = parser.parse_args()
    settings = [f"extract.weights={options.weights}", "extract.precision=exact", *options.set]
    settings += ["runtime.threads=1", "data.annotations=null"]
    overrides = [word for setting in settings for word in ("--set", setting)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        scenes = [*A2, "scenes", str(folder / "scenes"), "--count", str(options.scenes)]
        subprocess.run(scenes, check=True, capture_output=True)
        images = folder / "scenes" / "images"
        single = [*A2, "extract", "--images", str(images), "--output", str(folder / "single")]
        subprocess.run([*single, *overrides], check=True, cwd=folder)
        make_plan(folder, [*settings, f"data.images={images}"], size=options.scenes // 30)
        shared = [*A2, "extract", "--plan", str(folder / "plan"), *overrides]
        killed = kill_workers([*shared, "--set", f"data.images={images}"], folder, options)
        convert(folder / "plan", folder / "joined", form="a2")
        expected = FeatureStore(folder / "single" / "features.lmdb").digest
        is_equal = FeatureStore(folder / "joined").digest == expected
        print(f"{plan_progress(folder / 'plan').text}; {killed} kills; digests equal: {is_equal}")
        assert is_equal


def make_plan(folder: Path, settings: list[str], *, size: int) -> None:
    """Make a plan of small shards, so that many are begun and finished."""
    with Experiment(load_config(None, settings), folder / "artifacts") as experiment:
        inputs = replace(experiment.plan_inputs(), shard_size=size)
    with PlanWorker.join(inputs, folder / "plan"):
        pass


def kill_workers(command: list[str], folder: Path, options: argparse.Namespace) -> int:
    """Run workers and kill random ones, until the plan is done; return the number of kills."""
    rng, killed = random.Random(0), 0
    workers = [subprocess.Popen(command, cwd=folder) for _ in range(WORKERS)]
    while any(worker.poll() is None for worker in workers):
        time.sleep(rng.uniform(0.5, 1.5) * options.seconds)
        number = rng.randrange(WORKERS)
        if killed < options.kills and workers[number].poll() is None:
            workers[number].send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM)))
            workers[number].wait()
            workers[number] = subprocess.Popen(command, cwd=folder)
            killed += 1
            done = sum(record.count for record in read_done(folder / "plan").values())
            print(f"{killed} kills, {done:,} images in finished shards", flush=True)
    assert all(worker.returncode == 0 for worker in workers)
    return killed


if __name__ == "__main__":
    main()
