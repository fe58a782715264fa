"""Grounding of aligned self-attention: a small LLaVA and a small PaliGemma, trained on scenes.

Each trial trains a model without masks; then it continues three times from there, as often as
before without masks, with alignment, and with alignment alone while theta is frozen. Finished
trials are read from --output, so that a stopped run resumes.
docs/guide/transformers.md has its table.
"""

import copy
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import transformers as hf
from numpy.typing import NDArray
from torch import Tensor, nn

from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.scenes.objects import COLOURS, PLURALS
from a2cap.data.scenes.scene import Scene, draw, make_scene
from a2cap.model.adapting.adapted_attention import recording
from a2cap.model.adapting.adapted_layers import adapt_layers
from a2cap.model.adapting.adapted_losses import adapted_losses
from a2cap.model.alignment import caption_parameters, mask_parameters
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.pipeline.analysis.t_interval import Interval, t_interval
from benchmarks.measure import machine, print_table
from benchmarks.study.grounding import GroundingMeter, grounded_words
from benchmarks.study.results import paired_difference

PATCH, WIDTH, LONGEST = 8, 64, 18
PAD, BOS, EOS, IMAGE = range(4)
RATE = 3e-3
"""Greatest learning rate of Adam, after 50 updates."""
IGNORED = -100
"""Label of positions without a loss."""
CONTINUED = ("none", "aligned", "aligned, theta frozen")
GROUP_OF = {word: "kinds" for pair in PLURALS.items() for word in pair}
GROUP_OF |= dict.fromkeys(COLOURS, "colours")


@dataclass(frozen=True)
class Extent:
    """Size of the study: scenes, their pixels, updates before and after the fork, and seeds."""

    train: int = 1000
    test: int = 100
    side: int = 48
    updates: int = 400
    continued: int = 100
    batch: int = 16
    seeds: int = 3


QUICK = Extent(train=16, test=4, updates=3, continued=2, batch=8, seeds=1)


MODELS = ("LLaVA", "PaliGemma")


def build(name: str, words: int, side: int) -> Any:
    """Return a model with random weights; PaliGemma's image and prompt read each other."""
    shared = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 4}
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    text: dict[str, Any] = {
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": WIDTH // 4,
        **ids,
    }
    text |= {**shared, "vocab_size": words}
    vision: dict[str, Any] = {"num_hidden_layers": 1, "image_size": side, "patch_size": PATCH}
    if name == "LLaVA":
        vision |= {**shared, "model_type": "clip_vision_model", "projection_dim": WIDTH}
        text |= {"model_type": "llama"}
        parts = {"vision_config": vision, "text_config": text, "image_token_id": IMAGE}
        return hf.LlavaForConditionalGeneration(hf.LlavaConfig(**parts, vision_feature_layer=-1))
    vision |= {**shared, "model_type": "siglip_vision_model", "vision_use_head": False}
    text |= {"model_type": "gemma"}
    parts = {"vision_config": vision, "text_config": text, "image_token_id": IMAGE, **ids}
    config = hf.PaliGemmaConfig(**parts, projection_dim=WIDTH)
    return hf.PaliGemmaForConditionalGeneration(config)


@dataclass(frozen=True)
class World:
    """Scenes as pixel values, (scenes, 3, side, side), and the vocabulary of their captions."""

    scenes: Sequence[Scene]
    pixels: Tensor
    words: Mapping[str, int]
    extent: Extent

    @classmethod
    def of(cls, extent: Extent) -> "World":
        """Draw the scenes; the last `extent.test` are to test with."""
        count = extent.train + extent.test
        scenes = [make_scene(index, seed=0, side=extent.side) for index in range(count)]
        pixels = torch.from_numpy(np.stack([draw(scene) for scene in scenes]))
        texts = sorted({word.text for scene in scenes for text in scene.captions for word in text})
        words = {text: number for number, text in enumerate(texts, start=IMAGE + 1)}
        return cls(scenes, pixels.permute(0, 3, 1, 2) / 127.5 - 1, words, extent)

    def batch(self, pairs: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        """Return the arguments of `forward` for pairs of a scene and one of its captions."""
        cells = (self.extent.side // PATCH) ** 2
        ids = torch.full((len(pairs), cells + LONGEST + 2), PAD)
        ids[:, :cells], ids[:, cells] = IMAGE, BOS
        for row, (scene, caption) in zip(ids, pairs, strict=True):
            words = [self.words[word.text] for word in self.scenes[scene].captions[caption]]
            tokens = torch.tensor([*words[:LONGEST], EOS])
            row[cells + 1 : cells + 1 + len(tokens)] = tokens
        is_caption = torch.arange(ids.shape[1]) > cells
        return {
            "input_ids": ids,
            "pixel_values": self.pixels[[scene for scene, _ in pairs]],
            "attention_mask": (ids != PAD).long(),
            # PaliGemma's prefix has 0; LLaVA does without
            "token_type_ids": is_caption.long().expand_as(ids),
            "labels": ids.masked_fill((ids == PAD) | ~is_caption, IGNORED),
        }

    def training(self, updates: int, seed: int) -> Iterator[dict[str, Tensor]]:
        """Yield batches of random captions."""
        generator = np.random.default_rng((seed, updates))
        for _ in range(updates):
            scenes = generator.integers(self.extent.train, size=self.extent.batch)
            captions = generator.integers(5, size=self.extent.batch)
            yield self.batch(list(zip(scenes.tolist(), captions.tolist(), strict=True)))


def accepted(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the arguments that a class reads."""
    is_llava = model.config.model_type == "llava"
    return {name: value for name, value in batch.items() if not (is_llava and "type" in name)}


def train(model: Any, world: World, updates: int, *, seed: int, alignment: AlignmentConfig) -> None:
    """Train the parameters that need a gradient; masks and all others by an optimiser each."""
    layers = adapt_layers(model, alignment)
    sides = [list(mask_parameters(model)), list(caption_parameters(model))]
    sides = [[p for p in side if p.requires_grad] for side in sides]
    optimisers = [torch.optim.Adam(side, lr=RATE, fused=True) for side in sides if side]
    model.train()
    for step, batch in enumerate(world.training(updates, seed)):
        for optimiser in optimisers:
            share = min(1.0, (step + 1) / 50, 5 * (updates - step) / updates)
            optimiser.param_groups[0]["lr"] = RATE * share
        model.zero_grad()
        losses = adapted_losses(model, layers, alignment, accepted(model, batch), step)
        torch.autograd.backward(losses.total())
        for side in sides:
            nn.utils.clip_grad_norm_(side, 1.0)
        for optimiser in optimisers:
            optimiser.step()
    model.eval()


@torch.no_grad()
def measure(model: Any, world: World, alignment: AlignmentConfig) -> dict[str, float]:
    """Return the grounding of attention and the loss in nats per token on the test scenes."""
    has_masks = alignment.fusion != "none"
    if not has_masks:  # the decay begins with the attention itself; it records every row
        adapt_layers(model, AlignmentConfig(fusion="decay"))
    meter, extent, losses = GroundingMeter(), world.extent, []
    overlapping = [_cells(scene, extent.side) for scene in world.scenes[extent.train :]]
    for caption, first in product(range(5), range(0, extent.test, 50)):
        last = min(first + 50, extent.test)
        pairs = [(extent.train + number, caption) for number in range(first, last)]
        with recording() as recorded:
            losses.append(model(**accepted(model, world.batch(pairs))).loss.item())
        attention = [calls[0] for _, calls in sorted(recorded.layers.items())]
        parts = {"attention": [layer.original for layer in attention]}
        if has_masks:
            parts["aligned"] = [layer.used for layer in attention]
            parts["evidence"] = [1 - layer.keep for layer in attention if layer.keep is not None]
        # rows begin at the image's last token, then <bos>, which predicts the first word
        by_name = {
            name: torch.stack([layer.mean(dim=1)[:, 1:] for layer in layers], dim=1).numpy()
            for name, layers in parts.items()
        }
        for row, (scene, _) in enumerate(pairs):
            words = world.scenes[scene].captions[caption][:LONGEST]
            weights = {name: values[row] for name, values in by_name.items()}
            right = overlapping[scene - extent.train]
            meter.add(grounded_words(words, GROUP_OF), weights, right)
    flat = {
        f"{group}/{name}": value
        for group, values in meter.results().items()
        for name, value in values.items()
    }
    return {"loss": float(np.mean(losses)), **flat}


def _cells(scene: Scene, side: int) -> NDArray[np.bool_]:
    """Return (cells, objects), True where the centre of a cell is in the box of an object."""
    y, x = (np.mgrid[:side:PATCH, :side:PATCH] + PATCH / 2).reshape(2, -1, 1)
    x1, y1, x2, y2 = np.array([obj.box for obj in scene.objects]).T
    inside: NDArray[np.bool_] = (x1 <= x) & (x <= x2) & (y1 <= y) & (y <= y2)
    return inside


def run_trial(name: str, seed: int, world: World) -> dict[str, dict[str, float]]:
    """Train and measure one model of one seed; returns the measures of each way to continue."""
    torch.manual_seed(seed)
    extent, none, gate = world.extent, AlignmentConfig(fusion="none"), AlignmentConfig()
    start = build(name, IMAGE + 1 + len(world.words), extent.side)
    began = time.perf_counter()
    train(start, world, extent.updates, seed=seed, alignment=none)
    spent = time.perf_counter() - began
    measures = {}
    for way in CONTINUED:
        model, alignment = copy.deepcopy(start), none if way == "none" else gate
        torch.manual_seed(seed)
        adapt_layers(model, alignment)
        for label, parameter in model.named_parameters():
            parameter.requires_grad_(".a2." in label or "frozen" not in way)
        began = time.perf_counter()
        train(model, world, extent.continued, seed=seed, alignment=alignment)
        seconds = {"seconds before": spent, "seconds": time.perf_counter() - began}
        measures[way] = {**measure(model, world, alignment), **seconds}
    return measures


def table(results: Mapping[str, Any]) -> list[list[str]]:
    """Return a row of model, way and 95 % intervals over seeds for each."""
    rows = []
    for name, way in product(MODELS, CONTINUED):
        keys = [key for key in results["trials"] if key.startswith(f"{name} ")]
        by_seed = {int(key.split()[-1]): results["trials"][key] for key in keys}

        def values(label: str, way: str, by_seed: Mapping[int, Any] = by_seed) -> dict[int, float]:
            """Return seed -> value where it is defined."""
            return {
                seed: trial[way][label] for seed, trial in by_seed.items() if label in trial[way]
            }

        plain, attention = values("all/attention", "none"), values("all/attention", way)
        aligned, evidence = values("all/aligned", way), values("all/evidence", way)
        baseline = plain if way != "none" else {}
        cells = [
            mean_of(attention),
            paired_difference(attention, baseline),
            mean_of(aligned),
            paired_difference(aligned, baseline),
            paired_difference(aligned, attention),
            mean_of(evidence),
            mean_of(values("loss", way)),
        ]
        shown = ["–" if cell is None else str(cell) for cell in cells]
        rows.append([f"{name}, {way}", str(len(by_seed)), *shown])
    return rows


def mean_of(values: Mapping[int, float]) -> Interval | None:
    """Return the mean over seeds with its 95 % interval, None without values."""
    return t_interval(list(values.values())) if values else None


HEADER = ("", "seeds", "α", "− plain α", "α^a", "− plain α", "− α", "1−m", "nats per token")


@click.command()
@click.option("--quick", is_flag=True, help="Train for a few updates, only to check that it runs.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("benchmarks/results/decoder_only.json"),
    show_default=True,
    help="File of the results; with --quick a temporary one.",
)
def main(quick: bool, output: Path) -> None:
    """Train and measure a small LLaVA and a small PaliGemma with aligned self-attention."""
    torch.set_num_threads(1)
    extent = QUICK if quick else Extent()
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / output.name if quick else output
        fresh = {"machine": machine(), "extent": asdict(extent), "trials": {}}
        results: Any = read_json(file) if file.is_file() else fresh
        if results["extent"] != asdict(extent):
            raise click.ClickException(f"{file} has results of other sizes; move it away")
        trials = [(name, seed) for seed in range(extent.seeds) for name in MODELS]
        left = [(name, seed) for name, seed in trials if f"{name} {seed}" not in results["trials"]]
        world = World.of(extent if left else QUICK)
        for name, seed in left:
            results["trials"][f"{name} {seed}"] = run_trial(name, seed, world)
            write_json(file, results)
            click.echo(f"{name} {seed}: done")
        print_table("Grounding of attention", HEADER, table(results))


if __name__ == "__main__":
    main()
