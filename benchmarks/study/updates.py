"""An update of each older captioner at its published size, as its file in configs/ states it.

All train on the same cells and captions, without alignment, by their own optimiser, in turn.
Springenberg et al. (2018) state that their Transformer trains faster than a recurrent captioner.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from a2cap.data.batches.collate import Batch
from a2cap.model.captioners.kinds import make_captioner
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyUpdater
from benchmarks.gpu_check import make_batch
from benchmarks.measure import Form, interleaved
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


def update_rows(*, quick: bool, rounds: int) -> list[Row]:
    """Time an update of each captioner in every round, on one thread.

    The seed of a row is its round; "times" is its time divided by that of `spatial` in this round,
    which other programs on the machine move less than the time itself.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes, fields = (QUICK, ("model.width=16",)) if quick else (SIZES, ())
    batch = make_batch(sizes, pinned=False)
    forms = {label: _update(label, batch, sizes, fields) for label in CAPTIONERS}
    timings = interleaved(forms, rounds=rounds)
    return [
        Row(PART, label, CROSS_ENTROPY, number, {"seconds": seconds, "times": seconds / reference})
        for label, timing in timings.items()
        for number, (seconds, reference) in enumerate(
            zip(timing.rounds, timings[REFERENCE].rounds, strict=True)
        )
    ]


def _update(label: str, batch: Batch, sizes: Sizes, fields: tuple[str, ...]) -> Form:
    """Return a function that trains the captioner of a row by one update."""
    name, *own = CAPTIONERS[label]
    common = ("model.alignment.fusion=none", "runtime.device=cpu")
    config = load_config(CONFIGS / f"{name}.yaml", [*common, *own, *fields])
    captioner = make_captioner(
        config.model, feature_width=sizes.feature_width, vocabulary_size=sizes.vocabulary
    )
    return partial(CrossEntropyUpdater(captioner, config.train).step, [batch], 1)
