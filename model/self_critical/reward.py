"""The reward of self-critical training: CIDEr-D, and BLEU-4 where it is asked for.

CIDEr-D (Vedantam et al. 2015, section 5, arXiv:1411.5726) and the BLEU of single captions are those
of coco-caption, pycocoevalcap 1.2 (`CiderScorer`, `BleuScorer` with the closest reference length),
for the same words. What that code does and the papers do not say is kept: the length of CIDEr-D is
the number of 2-grams.

All captions of a batch are scored together. A word is its number; <unk> in a caption is a word that
no reference holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from a2cap.model.captioner import SpecialTokens
from a2cap.model.errors import ModelError
from a2cap.model.self_critical.ngrams import (
    END_OF_CAPTION,
    END_OF_REFERENCE,
    LONGEST,
    InverseDocumentFrequencies,
    inside,
    occurrences,
)

SIGMA = 6.0
"""Width of CIDEr-D's length penalty, in words."""

_SMALL, _TINY = 1e-9, 1e-15  # of coco-caption's BleuScorer
_AT_ONCE = 4096


@dataclass(frozen=True)
class References:
    """The references of P images, S sentences of T words in all, one after the other.

    words: (T,) int32, numbers from 0; sentences: (S + 1,) int64, where each sentence begins, and T;
    images: (P + 1,) int64, where each image's sentences begin, and S.
    """

    words: Tensor
    sentences: Tensor
    images: Tensor

    @classmethod
    def of(cls, images: Sequence[Sequence[Sequence[int]]]) -> "References":
        """From one list of sentences per image."""
        sentences = [sentence for group in images for sentence in group]
        return cls(
            torch.tensor([word for sentence in sentences for word in sentence], dtype=torch.int32),
            _offsets([len(sentence) for sentence in sentences]),
            _offsets([len(group) for group in images]),
        )

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence, (S,)."""
        return self.sentences.diff()

    def padded(self, chosen: Tensor) -> Tensor:
        """Sentences by number, (...) int64 with -1 for none, as words (M, ...), -2 at the end."""
        lengths = torch.where(chosen >= 0, self.lengths[chosen], 0)
        # at least as many positions as an n-gram has words
        longest = max(LONGEST, int(lengths.max()) if lengths.numel() else 0)
        places = torch.arange(longest, device=chosen.device).reshape(-1, *[1] * chosen.ndim)
        index = (self.sentences[chosen] + places).clamp(max=len(self.words) - 1)
        return torch.where(places < lengths, self.words[index], END_OF_REFERENCE)

    def of_images(self, images: Tensor) -> Tensor:
        """The sentences of (B,) images: (B, G) int64, filled up with -1."""
        first, end = self.images[images], self.images[images + 1]
        places = torch.arange(int((end - first).max()), device=images.device)
        sentences = first[:, None] + places
        return torch.where(sentences < end[:, None], sentences, -1)

    def to(self, device: torch.device) -> "References":
        """The same on a device."""
        return References(self.words.to(device), self.sentences.to(device), self.images.to(device))


class CaptionReward:
    """CIDEr-D + bleu_weight * BLEU-4 of captions against the references of their images.

    eos: whether <eos> is a word of captions and references, which rewards ending in the right
    place; the references are given without it.
    """

    def __init__(
        self,
        frequencies: InverseDocumentFrequencies,
        references: References,
        *,
        eos: bool,
        bleu_weight: float = 0.0,
        special: SpecialTokens | None = None,
    ) -> None:
        if not len(references.words):
            raise ModelError("no reference has a word; give each image captions")
        self._special = special or SpecialTokens()
        self._frequencies = frequencies
        self._eos = eos
        self._bleu_weight = bleu_weight
        self._references = _with_end(references, self._special.eos) if eos else references
        self._norms = self._reference_norms()

    def __call__(self, images: Tensor, captions: Tensor) -> Tensor:
        """Rewards (B, K) float64, 0 for an empty caption.

        images: (B,) int64, numbers of images among the references; captions: (B, K, L) int64,
        words, <eos>, <pad>, on the device of the tables.
        """
        words = self._words(captions)
        sentences = self._references.of_images(images)
        references = self._references.padded(sentences)
        counted = _Counts.of(words, references)
        reward = self._cider(words, sentences, counted)
        if self._bleu_weight:
            lengths = self._references.lengths[sentences].masked_fill(sentences < 0, -1)
            reward = reward + self._bleu_weight * _bleu(words, counted, lengths)
        return reward

    def to(self, device: torch.device) -> "CaptionReward":
        """Moves all tables to a device, and returns the reward."""
        self._frequencies.to(device)
        self._references = self._references.to(device)
        self._norms = self._norms.to(device)
        return self

    def _words(self, captions: Tensor) -> Tensor:
        """(B, K, L) -> (max(L, 4), B, K), the end filled up."""
        ended = captions == self._special.pad
        if not self._eos:
            ended = ended | (captions == self._special.eos)
        words = captions.int().masked_fill(ended, END_OF_CAPTION).permute(2, 0, 1).contiguous()
        missing = max(0, LONGEST - len(words))
        return torch.cat((words, words.new_full((missing, *words.shape[1:]), END_OF_CAPTION)))

    def _cider(self, words: Tensor, sentences: Tensor, counted: "_Counts") -> Tensor:
        lengths = _bigrams((words >= 0).sum(dim=0))
        apart = lengths[..., None] - _bigrams(self._references.lengths[sentences])[:, None]
        exists = (sentences >= 0)[:, None]
        similarity = torch.zeros(apart.shape, dtype=torch.float64, device=words.device)
        weights = self._frequencies(words)
        for size, (weight, own, found, valid) in enumerate(
            zip(weights, counted.own, counted.found, counted.valid, strict=True)
        ):
            squares = weight.square() * valid
            # of an n-gram that occurs twice, each occurrence brings half
            shared = torch.minimum(found, own[..., None]) * found * (squares / own)[..., None]
            norms = (squares * own).sum(dim=0).sqrt()[..., None] * self._norms[size][sentences][
                :, None
            ]
            similarity += torch.where(norms > 0, shared.sum(dim=0) / norms, 0)
        similarity *= torch.exp(-apart.double().square() / (2 * SIGMA**2)) * exists
        return 10 / LONGEST * similarity.sum(dim=-1) / exists.sum(dim=-1)

    def _reference_norms(self) -> Tensor:
        """Lengths of the references' vectors, (4, S) float64."""
        lengths = self._references.lengths
        norms = torch.zeros(LONGEST, len(lengths), dtype=torch.float64)
        # neighbours in length together, so that little is filled up
        for chosen in torch.split(lengths.argsort(), _AT_ONCE):
            words = self._references.padded(chosen)
            parts = zip(
                self._frequencies(words), occurrences(words, words), inside(words), strict=True
            )
            for size, (weight, own, valid) in enumerate(parts):
                norms[size, chosen] = (weight.square() * own * valid).sum(dim=0).sqrt()
        return norms


@dataclass(frozen=True)
class _Counts:
    """How often n-grams occur, one entry for n = 1 to 4 each.

    own: (L', B, K), in the caption itself; found: (L', B, K, G), in each reference;
    valid: (L', B, K) bool, whether there is one.
    """

    own: list[Tensor]
    found: list[Tensor]
    valid: list[Tensor]

    @classmethod
    def of(cls, words: Tensor, references: Tensor) -> "_Counts":
        """words: (L, B, K) and references: (M, B, G) int64."""
        return cls(
            list(occurrences(words, words)),
            list(occurrences(words[..., None], references[:, :, None])),
            list(inside(words)),
        )


def _bleu(words: Tensor, counted: _Counts, reference_lengths: Tensor) -> Tensor:
    """BLEU-4 of each caption by itself, (B, K) float64; reference_lengths: (B, G)."""
    lengths = (words >= 0).sum(dim=0).double()
    score = torch.ones_like(lengths)
    for size, (own, found, valid) in enumerate(
        zip(counted.own, counted.found, counted.valid, strict=True)
    ):
        most = torch.minimum(found.amax(dim=-1), own)
        correct = (most.double() / own * valid).sum(dim=0)
        score *= (correct + _TINY) / ((lengths - size).clamp(min=0) + _SMALL)
    ratio = (lengths + _TINY) / (_closest(lengths, reference_lengths) + _SMALL)
    return score ** (1 / LONGEST) * torch.exp((1 - 1 / ratio).clamp(max=0))


def _closest(lengths: Tensor, references: Tensor) -> Tensor:
    """The reference length next to each caption's, of two the shorter one.

    lengths: (B, K); references: (B, G), negative for none. Returns (B, K).
    """
    apart = (lengths[..., None] - references[:, None]).abs()
    longest = references.max() + 1
    rank = (apart * longest + references[:, None]).masked_fill(
        (references < 0)[:, None], torch.iinfo(torch.int64).max
    )
    return (
        references[:, None].expand_as(apart).gather(-1, rank.argmin(-1, keepdim=True)).squeeze(-1)
    )


def _bigrams(lengths: Tensor) -> Tensor:
    return (lengths - 1).clamp(min=0)


def _offsets(counts: Sequence[int]) -> Tensor:
    """Where each of so many things begins in a row of them all, and its end."""
    return torch.tensor([0, *counts], dtype=torch.int64).cumsum(0)


def _with_end(references: References, eos: int) -> References:
    """The same with <eos> as last word of each sentence."""
    lengths = references.lengths
    sentences = references.sentences + torch.arange(len(lengths) + 1)
    words = references.words.new_full((int(sentences[-1]),), eos)
    is_word = torch.ones_like(words, dtype=torch.bool)
    is_word[sentences[1:] - 1] = False
    words[is_word] = references.words
    return References(words, sentences, references.images)
