"""Costs against the number of images: store, captions, preprocess, status, verify, training.

Images have features of 4 x 256 float16, so that a record has pages of its own in LMDB as real ones
do, and one caption each. Every step is a process of its own; "memory" is what it adds to the
imports, mapped files excluded.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import islice
from pathlib import Path

import click
import numpy as np
import torch

from a2cap.data.batches.collate import collate
from a2cap.data.batches.dataset import CaptionDataset
from a2cap.data.batches.loader import Batches
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.pipeline.cli.main import cli
from a2cap.pipeline.training.captioner.self_critical import ImageRewards
from a2cap.pipeline.training.captioner.train_config import ScstConfig
from a2cap.pipeline.training.captioner.training_data import read_training_data
from benchmarks.measure import Cost, measured, print_machine, print_table
from benchmarks.preprocess import random_regions

REGIONS, WIDTH = 4, 256
READS, BATCHES, HELD_OUT = 20_000, 100, 100
WORDS = "a the man dog red cup on in with near holds table street two sees green bird tree".split()  # noqa: SIM905

SMALL = (
    *("model.width=8", "model.heads=1", "model.feed_forward=8", "model.encoder_layers=1"),
    *("model.decoder_layers=1", "preprocess.min_count=1"),
)


def image_ids(count: int) -> Iterator[str]:
    """Yield ids like COCO's."""
    return (f"{number:012d}" for number in range(1, count + 1))


def write_store(folder: Path, count: int) -> int:
    """Write and seal the store."""
    regions = random_regions(np.random.default_rng(0), REGIONS, WIDTH)
    with FeatureWriter(folder / "features.lmdb", commit_every=4096) as writer:
        for image_id in image_ids(count):
            writer.add(image_id, regions)
        writer.seal()
    return count


def write_annotations(folder: Path, count: int) -> None:
    """Write one caption per image in our own layout."""
    rng = np.random.default_rng(0)
    splits = ["val"] * HELD_OUT + ["test"] * HELD_OUT
    with (folder / "captions.jsonl").open("w") as file:
        for number, image_id in enumerate(image_ids(count)):
            words = " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), 10))
            split = splits[number] if number < len(splits) else "train"
            line = {"image": f"{image_id}.jpg", "captions": [words], "split": split}
            file.write(f"{json.dumps(line)}\n")


def open_store(folder: Path) -> int:
    """Open the store and read one image."""
    FeatureStore(folder / "features.lmdb")["000000000001"]
    return 1


def read_at_random(folder: Path, count: int) -> int:
    """Read images in random order."""
    store = FeatureStore(folder / "features.lmdb")
    numbers = np.random.default_rng(1).integers(1, count + 1, min(READS, count))
    for number in numbers:
        store[f"{number:012d}"]
    return len(numbers)


def read_in_order(folder: Path, count: int) -> int:
    """Read images in the order of their keys."""
    store = FeatureStore(folder / "features.lmdb")
    first = image_ids(count)
    for image_id in islice(first, READS):
        store[image_id]
    return min(READS, count)


def run_command(*options: str) -> int:
    """Run an `a2` command in this process."""
    with Path(os.devnull).open("w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet):
        cli.main(options, standalone_mode=False)
    return 1


def stage_options(folder: Path) -> list[str]:
    """Return the options of an experiment on the store and the captions."""
    settings = (
        f"data.annotations={folder}/captions.jsonl",
        f"data.features={folder}/features.lmdb",
        *SMALL,
    )
    parts = [part for setting in settings for part in ("--set", setting)]
    return ["-c", "a2-from-features", "--artifacts", f"{folder}/artifacts", *parts]


def start_training(folder: Path, scst: bool) -> int:
    """Open the data of a training as its stage does, and load the first batches."""
    results = [
        (folder / "artifacts" / name).glob("*[0-9a-f]") for name in ("extract", "preprocess")
    ]
    [features], [captions] = results
    data = read_training_data(features, captions)
    dataset = CaptionDataset(data.store.path, data.captions, "train", captions_per_image=1, seed=0)
    rewards = (
        ImageRewards.read(captions, ScstConfig(), device=torch.device("cpu")) if scst else None
    )
    batches = Batches(dataset, collate, batch_size=50, seed=0).epoch(0)
    loaded = 0
    for [batch] in islice(batches, BATCHES):
        loaded += len(batch.image_ids)
        if rewards is not None and batch.tokens is not None:
            rewards(batch.image_ids, batch.tokens)
    return loaded


def steps(folder: Path, count: int) -> Iterator[tuple[str, Cost]]:
    """Yield each step and its figures."""
    write_annotations(folder, count)
    yield "write and seal the store", measured(partial(write_store, folder, count))
    yield "open the store, first read", measured(partial(open_store, folder))
    yield "random reads", measured(partial(read_at_random, folder, count))
    yield "sequential reads", measured(partial(read_in_order, folder, count))
    options = stage_options(folder)
    for name, command in (
        ("a2 verify --data", ["verify", "--data", str(folder / "features.lmdb")]),
        ("a2 extract (import)", ["extract", *options]),
        ("a2 preprocess", ["preprocess", *options]),
        ("a2 status", ["status", *options]),
    ):
        yield name, measured(partial(run_command, *command))
    yield "training, to batch 100", measured(partial(start_training, folder, False))
    yield "SCST, to batch 100", measured(partial(start_training, folder, True))


@click.command()
@click.option("--quick", is_flag=True, help="500 images.")
@click.option(
    "--images",
    multiple=True,
    type=int,
    default=[10_000, 100_000, 1_000_000],
    show_default=True,
    help="Numbers of images.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True),
    help="Folder for the files, 5 GB for a million images.  [default: temporary files]",
)
def main(quick: bool, images: tuple[int, ...], folder: Path | None) -> None:
    """Measure each step for each number of images."""
    print_machine()
    for count in [500] if quick else images:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            rows = []
            for step, cost in steps(Path(name), count):
                rate = f"{cost.count / cost.elapsed:,.0f}" if cost.count > 1 else ""
                figures = f"{cost.elapsed:.2f} s", f"{cost.cpu:.2f} s", f"{cost.unmapped:,.0f} MiB"
                rows.append([step, *figures, rate])
            size = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())
        print_table(
            f"{count:,} images, {size / 2**20:,.0f} MiB of files",
            ["", "time", "CPU time", "memory", "images/s"],
            rows,
        )


if __name__ == "__main__":
    main()
