"""Rewards of captions for reinforcement learning, in the form of TRL's reward functions.

>>> from a2cap import rewards
>>> captions = ["a red dog", "a cat"]
>>> rewards.bleu(captions, references=[["a red dog runs"], ["two cats"]])  # doctest: +SKIP

Each function takes completions, texts or TRL's lists of messages, and a list of reference captions
for each of them, which is a column `references` of the data set. Tokens are PTB tokens.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from a2cap.data.errors import InputError
from a2cap.pipeline.metrics.bleu import bleu_statistics, bleu_values
from a2cap.pipeline.metrics.cider import Idf, cider_values, frequencies_of
from a2cap.pipeline.metrics.meteor.meteor import meteor_statistics, meteor_values
from a2cap.pipeline.metrics.ngrams import count_pairs
from a2cap.pipeline.metrics.tokenization import ptb_tokens

Completion = str | Sequence[Mapping[str, str]]
"""Text, or messages, of which the last one is the caption."""


def cider(
    completions: Sequence[Completion],
    references: Sequence[Sequence[str]],
    *,
    idf: Idf = "references",
    **columns: object,
) -> list[float]:
    """Return CIDEr-D of each completion, from 0 to 10; further columns are ignored.

    Document frequencies are those of the batch, in which completions with the same references are
    of one image, so larger batches give steadier rewards; with idf coco, for example by
    `functools.partial`, those of COCO's train2014. Raises InputError if all references are of one
    image, which would make every reward 0.
    """
    candidates, groups = _tokens(completions, references)
    images = set(map(tuple, groups))
    if idf == "references" and len(images) < 2:
        raise InputError(
            "CIDEr-D needs references of two images or more in a batch; raise the batch size"
        )
    values = cider_values(count_pairs(candidates, groups), frequencies_of(idf, images))
    return list(values.tolist())


def bleu(
    completions: Sequence[Completion], references: Sequence[Sequence[str]], **columns: object
) -> list[float]:
    """Return BLEU-4 of each completion, from 0 to 1; further columns are ignored."""
    values = bleu_values(bleu_statistics(count_pairs(*_tokens(completions, references))))[:, 3]
    return [float(value) for value in values]


def spider_without_spice(
    completions: Sequence[Completion],
    references: Sequence[Sequence[str]],
    *,
    idf: Idf = "references",
    **columns: object,
) -> list[float]:
    """Return the mean of CIDEr-D and METEOR, which stands in for SPICE in SPIDEr (Liu et al. 2017).

    SPICE takes seconds of Java for a batch. idf and errors: as for `cider`.
    """
    by_cider = np.array(cider(completions, references, idf=idf))
    candidates, groups = _tokens(completions, references)
    by_meteor = np.array(meteor_values(meteor_statistics(candidates, groups)))
    return list(((by_cider + by_meteor) / 2).tolist())


def _tokens(
    completions: Sequence[Completion], references: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return the PTB tokens of completions and references."""
    if len(completions) != len(references) or not all(references):
        raise InputError(
            f"{len(completions)} completions have {len(references)} lists of references; give each "
            "completion a list of one or more"
        )
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return (
        [ptb_tokens(text) for text in texts],
        [[ptb_tokens(reference) for reference in group] for group in references],
    )
