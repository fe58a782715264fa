"""Image encoders: captions with a frozen one and trained ones, and the speed of the training.

`compare` trains a captioner on the first images of a data set for each encoder, by the stages of
`a2 run` as docs/guide/own-encoder.md has them, and judges it on images that chose nothing. It
resumes. `speed` times updates of the stage beside a plain PyTorch loop of the same network.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.batches.loader import Batches
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.files.atomic import replacing
from a2cap.data.files.json_file import read_json, write_json
from a2cap.extract.grid import grid_width, load_grid_weights
from a2cap.extract.trainable_encoder import TrainableEncoder
from a2cap.extract.weights.wheels import wheel_file
from a2cap.pipeline.configuration import Config, load_config, override
from a2cap.pipeline.engine.artifact_names import (
    CAPTIONS,
    ENCODER,
    EVALUATE,
    METRICS,
    PREPROCESS,
    TRAIN_ENCODER,
    VOCABULARY,
)
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.extraction.images import ImageFiles
from a2cap.pipeline.training.encoder.captioned_images import (
    CaptionedImages,
    SquareImages,
    collate,
)
from a2cap.pipeline.training.encoder.objectives import WordObjective, make_objective, word_shares
from a2cap.pipeline.training.encoder.train import EncoderUpdater
from a2cap.pipeline.training.encoder.validation import EncoderInTraining
from benchmarks.measure import Form, alternated, machine, print_machine, print_table
from benchmarks.photos_data import read_rows

CONFIG = Path(__file__).parents[1] / "configs" / "own-encoder.yaml"
ENCODERS = {
    "frozen": ("extract.weights=efficientnet-lite2",),
    "words": (),
    "captions": ("encoder.objective=captions",),
    "both": ("encoder.objective=captions",),
}
"""Encoders that are compared; that of `both` starts from that of `words`."""
VALIDATION, TEST = 100, 300
SHOWN = ("Bleu_4", "METEOR", "CIDEr", "truth")
_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


def written_lines(folder: Path, annotations: Path, count: int) -> Path:
    """Write the captions of `count` training images and of those held out; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{annotations.stem}-{count}.jsonl"
    write_lines(path, read_rows(annotations), count)
    return path


def write_lines(path: Path, rows: Sequence[AnnotatedImage], count: int) -> None:
    """Write the first `count` training images, 100 others to validate, and the next 300 to test."""
    training = [row for row in rows if row.split == "train"][:count]
    held = [row for row in rows if row.split != "train"][: VALIDATION + TEST]
    splits = {"train": training, "val": held[:VALIDATION], "test": held[VALIDATION:]}
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as lines:
        for split, images in splits.items():
            for row in images:
                captions = [caption.raw for caption in row.captions]
                line = {"image": row.file, "captions": captions, "split": split}
                lines.write(json.dumps(line) + "\n")


def compared(
    images: Path, annotations: Path, folder: Path, *, encoder: str, seed: int, fields: Sequence[str]
) -> dict[str, Any]:
    """Train a captioner on the features of an encoder; return its figures on the test images."""
    files = {"data.images": images, "data.annotations": annotations}
    seeds = [f"{section}.seed={seed}" for section in ("encoder", "train")]
    places = [override(name, path) for name, path in files.items()]
    settings = [*places, *ENCODERS[encoder], *seeds, *fields]
    artifacts = folder / "artifacts"
    if encoder == "both":
        with Experiment(load_config(CONFIG, [*places, *seeds, *fields]), artifacts) as opened:
            words = [opened.run(stage).directory for stage in (PREPROCESS, TRAIN_ENCODER)][-1]
        settings.append(override("encoder.start", words / ENCODER))
    with Experiment(load_config(CONFIG, settings), artifacts) as opened:
        done = {stage: opened.run(stage).directory for stage in opened.names}
    metrics: Any = read_json(done[EVALUATE] / METRICS)
    figures = {name: metrics["metrics"][name] for name in SHOWN if name in metrics["metrics"]}
    counts = metrics["captions"]
    figures["interval"] = metrics["confidence"]["CIDEr"]
    figures["words"] = counts["vocabulary"]
    figures["captions"] = round(counts["distinct_captions"] * counts["captions"])
    if TRAIN_ENCODER in done:
        lines = (done[TRAIN_ENCODER] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        figures["epochs"] = [json.loads(line) for line in lines]
    return figures


@click.group()
def main() -> None:
    """Measure image encoders and their training."""


@main.command()
@click.option("--images", required=True, type=_FOLDER, help="Folder of the images.")
@click.option("--annotations", required=True, type=_FILE, help="Their captions, with splits.")
@click.option("--count", required=True, type=click.IntRange(1), help="Training images.")
@click.option("--encoder", "encoders", multiple=True, type=click.Choice(list(ENCODERS)))
@click.option("--seed", "seeds", multiple=True, type=int, default=[0], show_default=True)
@click.option("--set", "fields", multiple=True, help="SECTION.FIELD=VALUE, as in a2 run.")
@click.option("--folder", type=_FOLDER, default=Path("encoders"), show_default=True)
@click.option("--output", type=_FILE, help="Add the results to this JSON.")
def compare(
    images: Path,
    annotations: Path,
    count: int,
    encoders: tuple[str, ...],
    seeds: tuple[int, ...],
    fields: tuple[str, ...],
    folder: Path,
    output: Path | None,
) -> None:
    """Train captioners of COUNT images, with each encoder, and compare them on 300 others."""
    print_machine()
    lines = written_lines(folder, annotations, count)
    for seed in seeds:
        for encoder in encoders or ENCODERS:
            figures = compared(images, lines, folder, encoder=encoder, seed=seed, fields=fields)
            row = {"data": lines.stem, "encoder": encoder, "seed": seed, "fields": fields}
            click.echo(json.dumps({**row, **figures}))
            if output is not None:
                add_result(output, "compare", {**row, "machine": machine(), **figures})


@main.command()
@click.option("--images", required=True, type=_FOLDER, help="Folder of the images.")
@click.option("--annotations", required=True, type=_FILE, help="Their captions, with splits.")
@click.option("--count", default=64, show_default=True, help="Training images of a round.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--workers", default=0, show_default=True, help="Threads, or processes, that read.")
@click.option("--set", "fields", multiple=True, help="SECTION.FIELD=VALUE, as in a2 run.")
@click.option("--folder", type=_FOLDER, default=Path("encoders"), show_default=True)
@click.option("--output", type=_FILE, help="Add the results to this JSON.")
def speed(
    images: Path,
    annotations: Path,
    count: int,
    rounds: int,
    workers: int,
    fields: tuple[str, ...],
    folder: Path,
    output: Path | None,
) -> None:
    """Time an epoch of the stage and of a plain loop, in turn."""
    print_machine()
    lines = written_lines(folder, annotations, count)
    files = {"data.images": images, "data.annotations": lines}
    places = [override(name, path) for name, path in files.items()]
    config = load_config(CONFIG, [*places, *fields])
    with Experiment(config, folder / "artifacts") as opened:
        captions = opened.run(PREPROCESS).directory
    forms = epochs(config, captions, images, lines, workers=workers)
    rows = [alternated(forms) for _ in range(rounds + 1)][1:]  # the first warms up
    medians = {name: np.median([row[name] for row in rows], axis=0) for name in forms}
    ratios = np.median([np.divide(row["plain"], row["a2"]) for row in rows], axis=0)
    table = [[name, *(f"{count / value:.1f}" for value in both)] for name, both in medians.items()]
    header = ["", "images a second", "a second of CPU"]
    print_table(f"{count} images, side {config.encoder.side}, {rounds} rounds", header, table)
    click.echo(f"a2 is {ratios[0]:.2f} times as fast, {ratios[1]:.2f} by CPU")
    if output is not None:
        seconds = {name: both.tolist() for name, both in medians.items()}
        form = {"images": count, "rounds": rounds, "workers": workers, "fields": fields}
        result = {**form, "seconds and of CPU": seconds, "ratios": ratios.tolist()}
        add_result(output, "speed", {**result, "machine": machine()})


def epochs(
    config: Config, captions: Path, images: Path, annotations: Path, *, workers: int
) -> dict[str, Form]:
    """Return an epoch of the stage, and one of a plain loop of the same network and words."""
    file, vocabulary = CaptionFile(captions / CAPTIONS), Vocabulary.load(captions / VOCABULARY)
    ids, encoder = file.image_ids("train"), config.encoder
    paths = {row.image_id: images / row.file for row in read_rows(annotations)}
    backbone = config.extract.grid_backbone
    weights = load_grid_weights(wheel_file(backbone), backbone)
    made = [TrainableEncoder(weights, config.extract, share=encoder.trained) for _ in range(2)]
    width = grid_width(config.extract)
    objectives = [make_objective(encoder, file, ids, vocabulary, width=width) for _ in made]
    network = EncoderInTraining(made[0], objectives[0])
    network.train()
    made[0].to(memory_format=torch.channels_last)
    side = encoder.side or made[0].side
    small = captions.parents[2] / f"small {side} {encoder.crop}"
    squares = SquareImages(ImageFiles(paths), side, encoder.crop, small)
    data = CaptionedImages(squares, file, ids, encoder)
    batches = Batches(data, collate, encoder.batch_size, encoder.seed, workers=workers)
    updater = EncoderUpdater(network, encoder, steps=10 * len(batches))

    def a2() -> None:
        for number, parts in enumerate(batches.epoch(0), 1):
            updater.step(parts, number)

    plain_data = PlainImages([paths[name] for name in ids], [file.captions(n) for n in ids], side)
    plain_network, words = made[1], objectives[1]
    if not isinstance(words, WordObjective):
        raise click.BadParameter("the plain loop learns words")
    trained = [p for p in (*plain_network.parameters(), *words.parameters()) if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-5)
    loader = DataLoader(plain_data, encoder.batch_size, shuffle=True, num_workers=workers)

    def plain() -> None:
        for pixels, tokens in loader:
            states = plain_network(pixels).mean(dim=(2, 3))
            normed = F.layer_norm(states, states.shape[-1:])
            logits = words.layer(F.dropout(normed, encoder.dropout))
            shares = word_shares(tokens, words.ids)
            loss = F.binary_cross_entropy_with_logits(logits, shares)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()

    return {"a2": a2, "plain": plain}


class PlainImages(Dataset[tuple[Tensor, Tensor]]):
    """Photographs read by PIL and cut by torchvision, and captions padded to one length."""

    def __init__(self, paths: Sequence[Path], captions: Sequence[Any], side: int) -> None:
        length = max(tokens.shape[1] for tokens in captions)
        self._paths = paths
        self._tokens = [
            F.pad(torch.from_numpy(t).long(), (0, length - t.shape[1])) for t in captions
        ]
        self._change = transforms.Compose(
            [
                transforms.RandomResizedCrop(side, scale=(0.5, 1.0), ratio=(1 / 1.18, 1.18)),
                transforms.ColorJitter(brightness=0.25, contrast=0.25),
                transforms.ToTensor(),
                transforms.Normalize((0.5,) * 3, (0.5,) * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        with Image.open(self._paths[index]) as image:
            return self._change(image.convert("RGB")), self._tokens[index]


def add_result(path: Path, name: str, result: dict[str, Any]) -> None:
    """Add a result to the list of this name in a JSON file."""
    content: Any = read_json(path) if path.is_file() else {}
    content.setdefault(name, []).append(result)
    write_json(path, content)


if __name__ == "__main__":
    main()
