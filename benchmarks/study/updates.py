"""An update and an epoch of each older captioner at its published size, as configs/ states it.

All train on the same cells and captions, without alignment, by their own optimiser, in turn.
Springenberg et al. (2018) state that their Transformer trains faster than a recurrent captioner.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.batches.collate import FEW_SHAPES, Batch, token_positions
from a2cap.data.captions.vocabulary import EOS, PAD
from a2cap.model.captioners.kinds import make_captioner
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyUpdater
from benchmarks.gpu_check import make_batch
from benchmarks.measure import Form, alternated
from benchmarks.self_critical import Sizes
from benchmarks.study.results import Row
from benchmarks.study.running import CROSS_ENTROPY

CONFIGS = Path(__file__).parents[2] / "configs"
PART, REFERENCE = "updates", "spatial"

CAPTIONERS: Mapping[str, tuple[str, ...]] = {
    REFERENCE: ("spatial",),
    "show-attend-tell of 1800": ("show-attend-tell",),
    "show-attend-tell of 1000": ("show-attend-tell", "model.width=1000"),
    "gru": ("gru",),
}
"""Row -> its file in configs/, and fields that differ: 1,000 is the width for Flickr8k."""

SIZES = Sizes(images=13, samples=5, tokens=15, regions=196, feature_width=512, vocabulary=10_000)
"""65 captions of 14 words and <eos>, about the 64 of Xu et al.; 14 x 14 cells of VGG."""
QUICK = Sizes(images=2, samples=2, tokens=5, regions=196, feature_width=16, vocabulary=50)

CAPTIONS = 414_113
"""Captions of COCO's 82,783 training images, an epoch."""
WORDS = tuple(
    Counter(
        {7: 1, 8: 10, 9: 15, 10: 14, 11: 9, 12: 7, 13: 3, 14: 3, 15: 1, 17: 1, 20: 1}
    ).elements()
)
"""Lengths of 65 captions, the quantiles of 28,485 of COCO."""
ONE_LENGTH = (8, 9, 11, 13)
"""Their medians by quarters: the lengths of the batches of Xu et al., of one length each."""
MOST_WORDS = 14
"""Springenberg et al. leave longer captions out."""


def update_rows(*, quick: bool, rounds: int) -> list[Row]:
    """Time an update, and four of an epoch, of each captioner in every round, on one thread.

    All are of the processor, which other programs on the machine move less. The seed of a row is
    its round. "seconds" is of an update of captions of one length, "epoch hours" is computed from
    four updates of COCO's lengths; "times" and "epoch times" are divided by those of `spatial` in
    this round.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes, fields = (QUICK, ("model.width=16",)) if quick else (SIZES, ())
    alike = make_batch(sizes, pinned=False)
    forms: dict[str, Form] = {}
    counts = {}
    for label in CAPTIONERS:
        updater = _updater(label, sizes, fields)
        lengths, share = _epoch(label, ONE_LENGTH[:1] if quick else ONE_LENGTH)
        counts[label] = CAPTIONS * share / sum(each.numel() for each in lengths)
        batches = [_batch(sizes, each) for each in lengths]
        forms[label] = _training(updater, [alike])
        forms[f"{label}, epoch"] = _training(updater, batches)
    alternated(forms)  # not counted
    rows = []
    for number in range(rounds):
        taken = {form: cpu for form, (_, cpu) in alternated(forms).items()}
        hours = {label: taken[f"{label}, epoch"] * counts[label] / 3600 for label in CAPTIONERS}
        for label in CAPTIONERS:
            values = {
                "seconds": taken[label],
                "times": taken[label] / taken[REFERENCE],
                "epoch hours": hours[label],
                "epoch times": hours[label] / hours[REFERENCE],
            }
            rows.append(Row(PART, label, CROSS_ENTROPY, number, values))
    return rows


def _updater(label: str, sizes: Sizes, fields: tuple[str, ...]) -> CrossEntropyUpdater:
    name, *own = CAPTIONERS[label]
    common = ("model.alignment.fusion=none", "runtime.device=cpu")
    config = load_config(CONFIGS / f"{name}.yaml", [*common, *own, *fields])
    captioner = make_captioner(
        config.model, feature_width=sizes.feature_width, vocabulary_size=sizes.vocabulary
    )
    return CrossEntropyUpdater(captioner, config.train)


def _training(updater: CrossEntropyUpdater, batches: list[Batch]) -> Form:
    """Return a function that makes an update of each batch."""
    return lambda: [updater.step([batch], 1) for batch in batches]


def _epoch(label: str, one_length: tuple[int, ...]) -> tuple[list[Tensor], float]:
    """Return the words of the captions of a batch, (B, K) int64, for each of these lengths.

    Also returns the share of COCO's captions that its authors train on.

    Those of Show, Attend and Tell have 64 images with a caption of this length; others have 13
    images with five captions of all lengths, those of `spatial` up to 14 words.
    """
    if label.startswith("show-attend-tell"):
        return [torch.full((64, 1), length) for length in one_length], 1.0
    lengths = [n for n in WORDS if n <= MOST_WORDS or label != REFERENCE]
    filled = torch.tensor([*lengths, *WORDS[: len(WORDS) - len(lengths)]])
    shuffled = [filled[torch.randperm(len(filled))].reshape(-1, 5) for _ in one_length]
    return shuffled, len(lengths) / len(WORDS)


def _batch(sizes: Sizes, lengths: Tensor) -> Batch:
    """Return random features and captions of so many words, (B, K)."""
    images, samples = lengths.shape
    longest = int(lengths.max())
    shape = replace(sizes, images=images, samples=samples, tokens=longest + 1)
    place, ends = torch.arange(longest + 1), lengths[..., None]
    drawn = torch.randint(4, sizes.vocabulary, (images, samples, longest + 1))
    tokens = drawn.masked_fill(place == ends, EOS).masked_fill(place > ends, PAD)
    batch = make_batch(shape, pinned=False)
    return replace(batch, tokens=tokens, positions=token_positions(tokens, FEW_SHAPES))
