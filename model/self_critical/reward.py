"""The reward of self-critical training: CIDEr-D, optionally with BLEU-4.

CIDEr-D (`a2cap.model.self_critical.cider`) and the BLEU of single captions equal those of
coco-caption for the same tokens: pycocoevalcap 1.2, `CiderScorer` and `BleuScorer` with the closest
reference length. All captions of a batch are scored together, as token ids; <unk> in a caption
matches no reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from a2cap.model.captioner import SpecialTokens
from a2cap.model.errors import ModelError
from a2cap.model.self_critical.cider import cider_d, vector_norms
from a2cap.model.self_critical.document_frequencies import InverseDocumentFrequencies
from a2cap.model.self_critical.ngrams import (
    END_OF_CAPTION,
    END_OF_REFERENCE,
    MAX_N,
    NgramCounts,
    closest_lengths,
    count_occurrences,
    ngram_exists,
)

_SMALL, _TINY = 1e-9, 1e-15  # from coco-caption's BleuScorer
_CHUNK = 4096
"""References whose norms are computed together."""


@dataclass(frozen=True)
class ReferenceTokens:
    """References of P images, S sentences of T tokens in total, concatenated.

    tokens: (T,) int32 from 0; sentences: (S + 1,) int64, start of each sentence, and T;
    images: (P + 1,) int64, first sentence of each image, and S.
    """

    tokens: Tensor
    sentences: Tensor
    images: Tensor

    @classmethod
    def from_sentences(cls, images: Sequence[Sequence[Sequence[int]]]) -> "ReferenceTokens":
        """Concatenate one list of sentences per image."""
        sentences = [sentence for group in images for sentence in group]
        tokens = [token for sentence in sentences for token in sentence]
        return cls(
            torch.tensor(tokens, dtype=torch.int32),
            _offsets([len(sentence) for sentence in sentences]),
            _offsets([len(group) for group in images]),
        )

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, (S,)."""
        return self.sentences.diff()

    def padded(self, numbers: Tensor) -> Tensor:
        """Return sentences by number, (...) int64 with -1 for none, as tokens (M, ...).

        Positions after the end are END_OF_REFERENCE.
        """
        lengths = torch.where(numbers >= 0, self.lengths[numbers], 0)
        # at least as many positions as the longest n-gram has tokens
        longest = max(MAX_N, int(lengths.max()) if lengths.numel() else 0)
        positions = torch.arange(longest, device=numbers.device).reshape(-1, *[1] * numbers.ndim)
        # (...) + (M, 1, ...) -> (M, ...)
        index = (self.sentences[numbers] + positions).clamp(max=len(self.tokens) - 1)
        return torch.where(positions < lengths, self.tokens[index], END_OF_REFERENCE)

    def of_images(self, images: Tensor) -> Tensor:
        """Return the sentence numbers of (B,) images: (B, G) int64, padded with -1."""
        first, end = self.images[images], self.images[images + 1]
        sentences = first[:, None] + torch.arange(int((end - first).max()), device=images.device)
        return torch.where(sentences < end[:, None], sentences, -1)

    def to(self, device: torch.device) -> "ReferenceTokens":
        """Copy to a device."""
        return ReferenceTokens(
            self.tokens.to(device), self.sentences.to(device), self.images.to(device)
        )


class CaptionReward:
    """Reward CIDEr-D + bleu_weight * BLEU-4 of captions against the references of their images.

    eos: counts <eos> as a token of captions and references, which rewards a correct end; pass the
    references without it. Raises ModelError for references without tokens.
    """

    def __init__(
        self,
        frequencies: InverseDocumentFrequencies,
        references: ReferenceTokens,
        *,
        eos: bool,
        bleu_weight: float = 0.0,
    ) -> None:
        if not len(references.tokens):
            raise ModelError("all references are empty; give each image captions")
        self._special = SpecialTokens()
        self._frequencies = frequencies
        self._eos = eos
        self._bleu_weight = bleu_weight
        self._references = _append_eos(references, self._special.eos) if eos else references
        self._norms = self._reference_norms()

    def __call__(self, images: Tensor, captions: Tensor) -> Tensor:
        """Return rewards (B, K) float64, 0 for an empty caption.

        images: (B,) int64, numbers of images among the references; captions: (B, K, L) int64,
        tokens, <eos>, <pad>, on the device of the tables.
        """
        tokens = self._trim(captions)
        sentences = self._references.of_images(images)
        references = self._references.padded(sentences)
        counts = NgramCounts.of(torch, tokens, references)
        lengths = self._references.lengths[sentences].masked_fill(sentences < 0, -1)
        reward: Tensor = cider_d(
            torch,
            counts,
            self._frequencies(tokens),
            self._norms[:, sentences],
            lengths=(tokens >= 0).sum(dim=0),
            reference_lengths=lengths,
        )
        if self._bleu_weight:
            reward = reward + self._bleu_weight * _bleu(tokens, counts, lengths)
        return reward

    def to(self, device: torch.device) -> "CaptionReward":
        """Move all tables to a device in place; return self."""
        self._frequencies.to(device)
        self._references = self._references.to(device)
        self._norms = self._norms.to(device)
        return self

    def _trim(self, captions: Tensor) -> Tensor:
        """Replace all after the end by END_OF_CAPTION; (B, K, L) -> (max(L, 4), B, K) int32."""
        ended = captions == self._special.pad
        if not self._eos:
            ended = ended | (captions == self._special.eos)
        # (B, K, L) -> (L, B, K)
        tokens = captions.int().masked_fill(ended, END_OF_CAPTION).permute(2, 0, 1).contiguous()
        missing = max(0, MAX_N - len(tokens))
        return torch.cat((tokens, tokens.new_full((missing, *tokens.shape[1:]), END_OF_CAPTION)))

    def _reference_norms(self) -> Tensor:
        """Return the norms of the references' TF-IDF vectors, (4, S) float64."""
        lengths = self._references.lengths
        norms = torch.zeros(MAX_N, len(lengths), dtype=torch.float64)
        # sorted by length, so that little is padding
        for rows in torch.split(lengths.argsort(), _CHUNK):
            tokens = self._references.padded(rows)
            parts = vector_norms(
                torch,
                self._frequencies(tokens),
                count_occurrences(torch, tokens, tokens),
                ngram_exists(tokens),
            )
            norms[:, rows] = torch.stack(list(parts))
        return norms


def _bleu(tokens: Tensor, counts: NgramCounts[Tensor], reference_lengths: Tensor) -> Tensor:
    """Compute BLEU-4 of each single caption, (B, K) float64; reference_lengths: (B, G)."""
    lengths = (tokens >= 0).sum(dim=0)
    closest = closest_lengths(torch, lengths, reference_lengths).double()
    lengths = lengths.double()
    score = torch.ones_like(lengths)
    for size, correct in enumerate(counts.correct(torch)):
        score *= (correct + _TINY) / ((lengths - size).clamp(min=0) + _SMALL)
    ratio = (lengths + _TINY) / (closest + _SMALL)
    return score ** (1 / MAX_N) * torch.exp((1 - 1 / ratio).clamp(max=0))


def _offsets(counts: Sequence[int]) -> Tensor:
    """Return the start of each of consecutive groups, and the end of the last."""
    return torch.tensor([0, *counts], dtype=torch.int64).cumsum(0)


def _append_eos(references: ReferenceTokens, eos: int) -> ReferenceTokens:
    """Append <eos> to each sentence."""
    lengths = references.lengths
    sentences = references.sentences + torch.arange(len(lengths) + 1)
    tokens = references.tokens.new_full((int(sentences[-1]),), eos)
    is_token = torch.ones_like(tokens, dtype=torch.bool)
    is_token[sentences[1:] - 1] = False
    tokens[is_token] = references.tokens
    return ReferenceTokens(tokens, sentences, references.images)
