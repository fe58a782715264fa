"""Every captioner on the same generated scenes, with and without alignment, in one table.

Writes `table.md` into the folder of --output after each row, with the rows of earlier calls of the
same sizes. Finished stages are not repeated, so a stopped run resumes. docs/captioners.md explains
the columns.
"""

import logging
import multiprocessing
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from a2cap.data.batches.loader import image_batches
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.regions import cell_boxes
from a2cap.data.scenes.generate import write_scenes
from a2cap.model.captioners import kinds
from a2cap.pipeline.captioning.captioning_config import CaptioningConfig
from a2cap.pipeline.captioning.saved_captioner import load_model
from a2cap.pipeline.configuration import Config, load_config, override
from a2cap.pipeline.engine.artifact_names import (
    EVALUATE,
    EXTRACT,
    FEATURES,
    METRICS,
    PER_IMAGE,
    PREPROCESS,
    TRAIN_XE,
)
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.experiment import Experiment
from benchmarks.measure import print_machine

CONFIG = Path(__file__).with_suffix(".yaml")
SIDE = 224
"""Pixels; the size that the bundled detector was trained on."""
CELLS = 7
"""Cells per side of the grid that `spatial` reads."""

# the tanh of the keys saturates on the features of this detector, which are all positive
_ADDITIVE = ("attention_width={wide}", "standardise=true")
# the mean of such regions hardly differs between images, and dropout hides what differs
_MEAN_REGION = ("standardise=true", "dropout=0")
_SHOW_ATTEND_TELL = (
    *("kind=show-attend-tell", "embedding={width}", *_ADDITIVE),
    "alignment.renormalise_aligned=true",
    # the authors' are for longer trainings: dropout of 0.5, and initial values near 0, from which
    # two layers of keys hardly move
    *("dropout=0", "initial=uniform", "attention_layers=1"),
)
_AFTER_HARD = "show-attend-tell, soft after hard"
_TRANSFORMER = ("heads=4", "feed_forward={double}", "decoder_layers=2")
KINDS: Mapping[str, tuple[str, ...]] = {
    "transformer": ("kind=transformer", "encoder_layers=1", *_TRANSFORMER),
    "m2": ("kind=m2", "encoder_layers=2", "memory_slots=10", *_TRANSFORMER),
    "get": ("kind=get", "encoder_layers=2", *_TRANSFORMER),
    "spatial": ("kind=spatial", "encoder_layers=1", f"cells={CELLS**2}", *_TRANSFORMER),
    "aoa": ("kind=aoa", "heads=4", "refiner_layers=2"),
    "up-down": ("kind=up-down", "embedding={width}", *_ADDITIVE),
    # the penalty asks that a caption attends to every region alike; few of them are named
    "gcn-lstm": ("kind=gcn-lstm", "embedding={width}", "dropout=0", *_ADDITIVE),
    "show-attend-tell": (*_SHOW_ATTEND_TELL, "doubly_stochastic=0"),
    "show-attend-tell, hard": (*_SHOW_ATTEND_TELL, "attention=hard", "hard.baseline=soft"),
    _AFTER_HARD: (*_SHOW_ATTEND_TELL, "doubly_stochastic=0"),
    "gru": ("kind=gru", "embedding={width}", "scale=sqrt"),
    "nic": ("kind=nic", "embedding={width}", *_MEAN_REGION),
    "nic, rnn": ("kind=nic", "cell=rnn", "embedding={width}", *_MEAN_REGION),
    "log-bilinear": ("kind=log-bilinear", *_MEAN_REGION),
    # of 135 words
    "lstm-a": ("kind=lstm-a", "embedding={width}", "attributes=100", *_MEAN_REGION),
}
"""Row -> fields of the section `model`."""

STARTS = {
    "show-attend-tell, hard": "show-attend-tell",
    _AFTER_HARD: "show-attend-tell, hard",
}
"""Row -> the row that its training goes on from. Hard attention from the start often misses the
objects; soft attention finds them and stays wide; after hard attention it stays narrow."""

QUICK = ("spatial",)
"""Rows of --quick: the one that reads cells."""

FUSIONS = ("none", "gate")
HEADER = (
    *("captioner", "fusion", "CIDEr (95 %)", "true captions", "grounding α", "α^a", "uniform"),
    *("parameters", "captions per CPU s"),
)


@dataclass(frozen=True)
class Comparison:
    """Sizes of all rows; scenes: number of images to draw, a fifth of them held out."""

    folder: Path
    scenes: int
    epochs: int
    width: int

    @property
    def artifacts(self) -> Path:
        """Folder of the results of stages."""
        return self.folder / "artifacts"

    def config(self, *fields: str) -> Config:
        """Return the configuration of an experiment on the scenes."""
        drawn = self.folder / "scenes"
        data = {
            "images": drawn / "images",
            "annotations": drawn / "dataset_coco.json",
            "instances": drawn / "instances.json",
            "scenes": drawn / "instances.json",
        }
        places = [override(f"data.{name}", path) for name, path in data.items()]
        return load_config(CONFIG, [*places, f"train.epochs={self.epochs}", *fields])

    def row(self, name: str, fusion: str) -> Config:
        """Return the configuration of a row."""
        sizes = {"width": self.width, "double": 2 * self.width, "wide": 4 * self.width}
        model = (*KINDS[name], "width={width}", f"alignment.fusion={fusion}")
        fields = [f"model.{field.format(**sizes)}" for field in model]
        if name == "spatial":
            fields.append(override("data.features", self.cells()))
        if name in STARTS:
            with Experiment(self.row(STARTS[name], fusion), self.artifacts) as opened:
                fields.append(override("train.start", opened.run(TRAIN_XE).directory))
        if name == _AFTER_HARD:  # briefly, so that attention stays narrow
            fields += [f"train.epochs={-(-self.epochs // 2)}", "train.lr=5e-4"]
        return self.config(*fields)

    def cells(self) -> Path:
        """Return the features of a grid's cells by the same detector, extracted at most once."""
        boxes = override("data.instances", self.folder / "cells.json")
        config = self.config(boxes, "extract.boxes=given")
        with Experiment(config, self.artifacts) as opened:
            return opened.run(EXTRACT).directory / FEATURES


def prepare(compared: Comparison, names: Collection[str]) -> None:
    """Draw the scenes, extract the features that these rows read, preprocess the captions."""
    with track("draw scenes", total=compared.scenes) as progress:
        drawn = compared.folder / "scenes"
        write_scenes(drawn, count=compared.scenes, side=SIDE, progress=progress.advance)
    instances: Any = read_json(drawn / "instances.json")
    boxes = cell_boxes(CELLS, (0, 0, SIDE, SIDE)).tolist()
    category = instances["categories"][0]["id"]
    cells = [
        {"image_id": image["id"], "category_id": category, "bbox": [x, y, right - x, low - y]}
        for image in instances["images"]
        for x, y, right, low in boxes
    ]
    numbered = [{"id": number, **cell} for number, cell in enumerate(cells, start=1)]
    write_json(compared.folder / "cells.json", {**instances, "annotations": numbered})
    if "spatial" in names:
        compared.cells()
    with Experiment(compared.config(), compared.artifacts) as opened:
        for stage in (EXTRACT, PREPROCESS):
            opened.run(stage)


def run_row(compared: Comparison, row: tuple[str, str]) -> list[str]:
    """Train and evaluate a row unless that is done; return its cells."""
    logging.disable(logging.WARNING)
    name, fusion = row
    with Experiment(compared.row(name, fusion), compared.artifacts) as opened:
        done = {stage: opened.run(stage).directory for stage in opened.names}
    metrics: Any = read_json(done[EVALUATE] / METRICS)
    low, high = metrics["confidence"]["CIDEr"]
    # an untrained captioner may name no category
    grounding = metrics.get("grounding", dict.fromkeys(("original", "aligned", "uniform")))
    per_image: Any = read_json(done[EVALUATE] / PER_IMAGE)
    image_ids = list(per_image["images"])
    parameters, speed = _speed(done[TRAIN_XE], done[EXTRACT], image_ids)
    return [
        *(name, fusion, f"{metrics['metrics']['CIDEr']:.3f} ({low:.3f} to {high:.3f})"),
        _share(metrics["metrics"].get("truth")),
        _share(grounding["original"]),
        _share(grounding["aligned"] if fusion != "none" else None),
        *(_share(grounding["uniform"]), f"{parameters:,}", f"{speed:.0f}"),
    ]


def _speed(model: Path, features: Path, image_ids: Sequence[str]) -> tuple[int, float]:
    """Return the parameters of a captioner, and its captions per CPU second with five beams."""
    torch.set_num_threads(1)
    loaded = load_model(model, device=torch.device("cpu"))
    batches = list(image_batches(features / FEATURES, image_ids, batch_size=50))
    started = time.process_time()
    count = sum(1 for _ in loaded.decode(batches, CaptioningConfig()))
    seconds = time.process_time() - started
    return sum(parameter.numel() for parameter in loaded.captioner.parameters()), count / seconds


def depth(name: str) -> int:
    """Return the number of rows that a row goes on from."""
    return 1 + depth(STARTS[name]) if name in STARTS else 0


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def fusions_of(row: str) -> tuple[str, ...]:
    """Return the fusions that a row is trained with: all, or none without attention."""
    kind = next(field.removeprefix("kind=") for field in KINDS[row] if field.startswith("kind="))
    return FUSIONS if kinds.KINDS[kind].settings(kind=kind).has_attention else FUSIONS[:1]


def read_rows(path: Path) -> dict[tuple[str, str], list[str]]:
    """Return the rows of earlier calls with the same sizes, by name and fusion."""
    content: Any = read_json(path) if path.is_file() else []
    return {(name, fusion): cells for name, fusion, cells in content}


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format finished rows as Markdown."""
    rule = ["---", "---", *["---:"] * (len(HEADER) - 2)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (HEADER, rule, *rows))


@click.command()
@click.option("--quick", is_flag=True, help="Train one captioner on 40 images, to check it.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("captioners"),
    show_default=True,
    help="Folder of all output; with --quick a temporary one.",
)
@click.option("--captioner", "names", type=click.Choice(list(KINDS)), multiple=True)
@click.option("--scenes", type=click.IntRange(40), default=1000, show_default=True)
@click.option("--epochs", type=click.IntRange(1), default=12, show_default=True)
@click.option("--width", type=click.IntRange(8), default=64, show_default=True)
@click.option("--processes", type=click.IntRange(1), default=2, show_default=True)
def main(
    quick: bool,
    output: Path,
    names: tuple[str, ...],
    scenes: int,
    epochs: int,
    width: int,
    processes: int,
) -> None:
    """Train, evaluate and time every captioner, with and without alignment."""
    print_machine()
    logging.disable(logging.WARNING)
    kinds = names or (QUICK if quick else KINDS)
    planned = [(name, fusion) for name in kinds for fusion in fusions_of(name)]
    # in rounds, so that no two processes train one start
    rounds = [[row for row in planned if depth(row[0]) == number] for number in range(3)]
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if quick else output.resolve()
        sizes = (40, 1, 8) if quick else (scenes, epochs, width)
        compared = Comparison(folder, *sizes)
        prepare(compared, kinds)
        saved = folder / f"rows-{'-'.join(map(str, sizes))}.json"
        rows = read_rows(saved)
        with ProcessPoolExecutor(processes, mp_context=spawning) as pool:
            run = map if quick else pool.map
            for together in rounds:
                for row, cells in zip(
                    together, run(partial(run_row, compared), together), strict=True
                ):
                    rows[row] = cells
                    done = len(planned) - sum(row not in rows for row in planned)
                    click.echo(f"{done} of {len(planned)}: {', '.join(cells[:3])}")
                    write_json(saved, [[*row, cells] for row, cells in rows.items()])
                    in_order = [(name, fusion) for name in KINDS for fusion in fusions_of(name)]
                    text = table([rows[row] for row in in_order if row in rows])
                    (folder / "table.md").write_text(text, encoding="utf-8")
    click.echo(f"\n{text}")


if __name__ == "__main__":
    main()
