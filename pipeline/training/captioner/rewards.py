"""Rewards of self-critical training, from tables that preprocessing wrote."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.document_frequencies import DocumentFrequencies
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.vocabulary import SPECIALS, Vocabulary
from a2cap.data.errors import InputError
from a2cap.model.self_critical.ngrams import InverseDocumentFrequencies
from a2cap.model.self_critical.reward import CaptionReward, References
from a2cap.pipeline.engine.artifacts import CAPTIONS, DOCUMENT_FREQUENCIES, REFERENCES, VOCABULARY
from a2cap.pipeline.training.captioner.config import ScstConfig


class ImageRewards:
    """Rewards of captions of the training images, by image id."""

    def __init__(self, reward: CaptionReward, image_ids: Sequence[str]) -> None:
        self._reward = reward
        self._numbers = {image_id: number for number, image_id in enumerate(image_ids)}

    @classmethod
    def read(cls, captions: Path, config: ScstConfig, *, device: torch.device) -> "ImageRewards":
        """Read the result of preprocessing; raise InputError if its files do not match."""
        vocabulary = Vocabulary.load(captions / VOCABULARY)
        frequencies = DocumentFrequencies.load(captions / DOCUMENT_FREQUENCIES)
        if frequencies.words[: len(vocabulary)] != vocabulary.words:
            raise InputError(
                f"document frequencies and vocabulary do not match: {str(captions)!r}; "
                'run "a2 preprocess --force"'
            )
        image_ids = CaptionFile(captions / CAPTIONS).image_ids("train")
        tokens = load_reference_tokens(captions / REFERENCES)  # PTB tokens: training needs no JVM
        # words outside the vocabulary keep a number of their own, which no caption can contain;
        # as <unk> they would match a generated <unk>
        numbers = {
            word: number for number, word in enumerate(frequencies.words) if number >= len(SPECIALS)
        }
        references = References.from_sentences(
            [
                [[numbers[word] for word in sentence.split()] for sentence in tokens[image_id]]
                for image_id in image_ids
            ]
        )
        per_caption = config.idf == "caption"
        weights = InverseDocumentFrequencies(
            torch.from_numpy(frequencies.ngrams),
            torch.from_numpy(frequencies.caption_counts if per_caption else frequencies.counts),
            documents=frequencies.captions if per_caption else frequencies.documents,
        )
        reward = CaptionReward(weights, references, eos=config.eos, bleu_weight=config.bleu_weight)
        return cls(reward.to(device), image_ids)

    def __call__(self, image_ids: Sequence[str], captions: Tensor) -> Tensor:
        """Return the rewards, (B, K) float64, of captions (B, K, L) int64."""
        numbers = [self._numbers[image_id] for image_id in image_ids]
        return self._reward(torch.tensor(numbers, device=captions.device), captions)
