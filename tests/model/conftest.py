from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioner import Memory
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from tests.model.kinds import FEATURE_WIDTH, make


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
    captions = [[[4, 5, 6, 7], [8, 4]], [[9, 10, 5, 4, 6], [7]], [[5, 5, 8], [10, 9, 4, 4]]]
    return Images(
        torch.randn(3, 4, FEATURE_WIDTH, generator=generator, dtype=torch.float64),
        torch.rand(3, 4, 5, generator=generator, dtype=torch.float64),
        torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] * 3 + [False]]),
        torch.tensor([[_caption(words) for words in rows] for rows in captions]),
    )


@pytest.fixture
def tiny():
    """Return a builder of tiny captioners of the paper from fields of both configurations."""

    def build(**fields):
        of_alignment = AlignmentConfig.model_fields.keys() & fields.keys()
        alignment = {name: fields.pop(name) for name in of_alignment}
        papers = {"encoder_layers": 2, "box_geometry": "none"}
        return make("transformer", alignment=alignment, **{**papers, **fields})

    return build
