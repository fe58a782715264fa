"""Overfitting of twenty captions, end to end: losses, optimizers, decoding and CIDEr."""

import time

import pytest
import torch

from a2cap.data.batches.collate import Batch
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.pipeline.captioning.decoding import caption_batches
from a2cap.pipeline.metrics.all_metrics import cider
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyOptimizer
from a2cap.pipeline.training.captioner.train_config import TrainConfig

WORDS = ("a", "red", "blue", "cat", "dog", "on", "under", "the", "big", "small", "table", "tree")
VOCABULARY = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", *WORDS), "karpathy")
IMAGES, REGIONS, WIDTH = 20, 4, 8


def batch():
    """Return twenty images of random features, each with a caption of six random words."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, len(VOCABULARY), (IMAGES, 1, 7), generator=generator)
    tokens[..., -1] = 2
    return Batch(
        tuple(f"{number}" for number in range(IMAGES)),
        torch.randn(IMAGES, REGIONS, WIDTH, generator=generator),
        torch.rand(IMAGES, REGIONS, 5, generator=generator),
        torch.ones(IMAGES, REGIONS, dtype=torch.bool),
        tokens,
    )


@pytest.mark.slow
@pytest.mark.parametrize("fusion", ["none", "max", "moving", "decay", "gate"])
def test_twenty_captions_overfit_to_a_cider_above_five_within_a_minute(fusion):
    started = time.process_time()
    torch.manual_seed(0)
    sizes = {"width": 64, "heads": 4, "feed_forward": 128, "encoder_layers": 1}
    model = TransformerConfig(
        **sizes, decoder_layers=2, dropout=0.0, alignment={"fusion": fusion, "decay_steps": 100}
    )
    captioner = TransformerCaptioner(model, feature_width=WIDTH, vocabulary_size=len(VOCABULARY))
    optimizer = CrossEntropyOptimizer(captioner, TrainConfig(schedule="constant", lr=2e-3))
    images = batch()
    for number in range(1, 151):
        [update] = optimizer.step([images], number)
        if update.means["loss"] < 0.05:
            break
    found = caption_batches(
        captioner.eval(),
        [images],
        VOCABULARY,
        DecodingConfig(max_length=10),
        device=torch.device("cpu"),
    )
    candidates = {image_id: beams[0].caption for image_id, beams in found}
    references = {
        image_id: [VOCABULARY.decode(caption) for caption in captions.tolist()]
        for image_id, captions in zip(images.image_ids, images.tokens, strict=True)
    }
    assert cider(candidates, references) > 5
    assert update.means["loss"] < 0.1
    assert time.process_time() - started < 60
