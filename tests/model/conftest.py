from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioner import Memory
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig

VOCABULARY_SIZE, FEATURE_WIDTH = 11, 6


@dataclass
class Images:
    """Three images of 4, 2 and 3 regions, with two captions each."""

    features: Tensor
    boxes: Tensor
    region_mask: Tensor
    captions: Tensor

    def encoded(self, captioner: TransformerCaptioner) -> Memory:
        return captioner.encode(self.features, self.boxes, self.region_mask)


def _caption(words: list[int]) -> list[int]:
    return [*words, 2, *[0] * (5 - len(words))]


@pytest.fixture
def images() -> Images:
    generator = torch.Generator().manual_seed(1)
    captions = [
        [[4, 5, 6, 7], [8, 4]],
        [[9, 10, 5, 4, 6], [7]],
        [[5, 5, 8], [10, 9, 4, 4]],
    ]
    return Images(
        torch.randn(3, 4, FEATURE_WIDTH, generator=generator, dtype=torch.float64),
        torch.rand(3, 4, 5, generator=generator, dtype=torch.float64),
        torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] * 3 + [False]]),
        torch.tensor([[_caption(words) for words in rows] for rows in captions]),
    )


@pytest.fixture
def tiny() -> Callable[..., TransformerCaptioner]:
    """Return a builder of tiny float64 captioners in eval mode from fields of both configs."""

    def make(**fields: object) -> TransformerCaptioner:
        alignment = {key: fields.pop(key) for key in list(fields) if key in _ALIGNMENT_FIELDS}
        sizes = {"width": 16, "heads": 2, "feed_forward": 24, "dropout": 0.0}
        layers = {"encoder_layers": 2, "decoder_layers": 2}
        config = TransformerConfig(**{**sizes, **layers, **fields, "alignment": alignment})
        torch.manual_seed(0)
        captioner = TransformerCaptioner(
            config, feature_width=FEATURE_WIDTH, vocabulary_size=VOCABULARY_SIZE
        )
        _break_symmetry(captioner)
        return captioner.double().eval()

    return make


_ALIGNMENT_FIELDS = set(AlignmentConfig.model_fields)


@torch.no_grad()
def _break_symmetry(captioner: TransformerCaptioner) -> None:
    """Move biases away from 0 and sharpen the predictions."""
    for name, parameter in captioner.named_parameters():
        if name.endswith("bias"):
            parameter.normal_(std=0.3)
    captioner.decoder.output.weight.mul_(3)
