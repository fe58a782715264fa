"""Training images nearest to an image, whose captions help to choose one of its captions.

Consensus reranking (Mao et al. 2015, section 8, arXiv:1412.6632) chooses by the agreement with
captions of the nearest training images alone; here it is added to the agreement of the captions
with each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.vocabulary import PAD
from a2cap.data.errors import InputError
from a2cap.data.features.store import FeatureStore
from a2cap.data.regions import top_scoring
from a2cap.model.decoding.beam_search import Hypothesis
from a2cap.pipeline.engine.artifact_names import CAPTIONS
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.engine.progress import advance_after_each, track
from a2cap.pipeline.training.captioner.self_critical import ImageRewards
from a2cap.pipeline.training.captioner.train_config import ScstConfig

WEIGHT = 16.0
"""Weight of the votes. It is above 1 because captions of other images share fewer words than those
of one image; measured in docs/photos.md."""
_BLOCK = 512
"""Images that are compared with all training images at once."""


class Neighbours:
    """Nearest training images of each image; call it for the votes on its captions.

    nearest: image id -> training images, nearest first. rewards: of captions by the references of
    training images.
    """

    def __init__(self, nearest: Mapping[str, Sequence[str]], rewards: ImageRewards) -> None:
        self._nearest = nearest
        self._rewards = rewards

    @classmethod
    def find(
        cls,
        store: FeatureStore,
        captions: Path,
        image_ids: Sequence[str],
        *,
        count: int,
        max_regions: int | None,
        events: EventLog,
    ) -> "Neighbours":
        """Find the `count` training images that are nearest to each image.

        captions: result of preprocessing. max_regions: those that the captioner attends to. Raises
        InputError if no training image has features.
        """
        stored = set(store)
        training = [
            image_id
            for image_id in CaptionFile(captions / CAPTIONS).image_ids("train")
            if image_id in stored
        ]
        if not training:
            raise InputError(
                f"no training image has features in {str(store.path)!r}, and evaluate.neighbours "
                f"is {count}; set it to 0, or extract the training images too"
            )
        with track("compare", total=len(training) + len(image_ids), events=events) as progress:
            means = [
                mean_features(
                    store, advance_after_each(ids, progress.advance), len(ids), max_regions
                )
                for ids in (image_ids, training)
            ]
        rows = nearest_rows(*means, count=count)
        nearest = {
            image_id: [training[row] for row in nearest_to_it]
            for image_id, nearest_to_it in zip(image_ids, rows.tolist(), strict=True)
        }
        rewards = ImageRewards.read(captions, ScstConfig(eos=False), device=torch.device("cpu"))
        return cls(nearest, rewards)

    def __call__(self, image_id: str, hypotheses: Sequence[Hypothesis]) -> Tensor:
        """Return the weighted mean CIDEr-D of K captions with those of the nearest images.

        Returns (K,) float64.
        """
        nearest = self._nearest[image_id]
        rows = [torch.tensor(hypothesis.tokens, dtype=torch.int64) for hypothesis in hypotheses]
        tokens = pad_sequence(rows, batch_first=True, padding_value=PAD)
        return WEIGHT * self._rewards(nearest, tokens.expand(len(nearest), -1, -1)).mean(dim=0)


def mean_features(
    store: FeatureStore, image_ids: Iterable[str], count: int, max_regions: int | None = None
) -> NDArray[np.float32]:
    """Return the mean of the features of each image's regions, (count, F), 0 without regions."""
    means = np.zeros((count, store.feature_width), np.float32)
    for mean, image_id in zip(means, image_ids, strict=True):
        features = top_scoring(store[image_id], max_regions).features
        # in float64, so that the order of regions hardly matters
        mean[:] = features.sum(axis=0, dtype=np.float64) / max(1, len(features))
    return means


def nearest_rows(
    features: NDArray[np.float32], training: NDArray[np.float32], *, count: int
) -> NDArray[np.int64]:
    """Return the rows of `training` that are nearest to each row of `features`, nearest first.

    features: (N, F); training: (M, F). Nearness is the cosine after each feature is standardised
    over `training`. Returns (N, min(count, M)).
    """
    centre = training.mean(axis=0, dtype=np.float64)
    squares = np.einsum("mf,mf->f", training, training, dtype=np.float64) / len(training)
    spread = np.sqrt(np.maximum(squares - centre**2, 0))
    # the deviation of a constant feature is rounding, by which it would become large
    spread[spread <= 1e-6 * np.abs(centre)] = 1
    queries, keys = (_directions(rows, centre, spread) for rows in (features, training))
    nearest = np.empty((len(queries), min(count, len(keys))), np.int64)
    for first in range(0, len(queries), _BLOCK):
        cosines = queries[first : first + _BLOCK] @ keys.T
        order = np.argsort(-cosines, axis=1, kind="stable")
        nearest[first : first + _BLOCK] = order[:, :count]
    return nearest


def _directions(
    rows: NDArray[np.float32], centre: NDArray[np.float64], spread: NDArray[np.float64]
) -> NDArray[np.float32]:
    directions = rows - centre.astype(np.float32)
    directions /= spread.astype(np.float32)
    lengths = np.sqrt(np.einsum("nf,nf->n", directions, directions))
    lengths[lengths == 0] = 1
    directions /= lengths[:, None]
    return directions
