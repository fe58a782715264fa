"""Order of an image's captions by how well each agrees with the others.

Minimum Bayes risk decoding (Kumar and Byrne 2004, N04-1022): the caption of the highest mean gain
over the captions found, here CIDEr-D in which all n-grams weigh alike. The likeliest caption is
often a short one that says little; what many captions say is more often true.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from a2cap.model.decoding.beam_search import Hypothesis
from a2cap.model.self_critical.cider import cider_d, vector_norms
from a2cap.model.self_critical.ngrams import (
    END_OF_CAPTION,
    END_OF_REFERENCE,
    MAX_N,
    NgramCounts,
    count_occurrences,
    ngram_exists,
)


def by_consensus(
    hypotheses: Sequence[Hypothesis], *, eos: int, votes: Tensor | None = None
) -> list[Hypothesis]:
    """Return the captions of one image, those that agree most with all of them first.

    Equally good ones keep their order; without votes, so do fewer than three.
    eos: token that is no word. votes: (K,) added to the agreement of each.
    """
    if len(hypotheses) < 3 and votes is None:
        return list(hypotheses)
    words = [[token for token in caption.tokens if token != eos] for caption in hypotheses]
    gains = (mean_similarities(words) + (0 if votes is None else votes)).tolist()
    return [
        caption for _, caption in sorted(zip(gains, hypotheses, strict=True), key=lambda p: -p[0])
    ]


def mean_similarities(captions: Sequence[Sequence[int]]) -> Tensor:
    """Return the mean CIDEr-D, 0 to 10, of each caption with all captions, (K,) float64."""
    lengths = torch.tensor([list(map(len, captions))])
    longest = max(MAX_N, int(lengths.max()))
    tokens = torch.full((longest, 1, len(captions)), END_OF_CAPTION, dtype=torch.int32)
    for number, caption in enumerate(captions):
        tokens[: len(caption), 0, number] = torch.tensor(caption, dtype=torch.int32)
    as_references = tokens.masked_fill(tokens == END_OF_CAPTION, END_OF_REFERENCE)
    weights = [torch.ones(longest - n, 1, len(captions)).double() for n in range(MAX_N)]
    exists = ngram_exists(tokens)
    norms = vector_norms(torch, weights, count_occurrences(torch, tokens, tokens), exists)
    scores: Tensor = cider_d(
        torch,
        NgramCounts.of(torch, tokens, as_references),
        weights,
        norms,
        lengths=lengths,
        reference_lengths=lengths,
    )
    return scores[0]
