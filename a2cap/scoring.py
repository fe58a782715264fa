"""Scores of captions that Python programs hold."""

from collections.abc import Collection, Mapping, Sequence

from a2cap.data.errors import InputError
from a2cap.data.tokenizers import Tokenizer
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.all_metrics import score as score_tokens
from a2cap.pipeline.metrics.cider import Idf
from a2cap.pipeline.metrics.spice import NEEDS
from a2cap.pipeline.metrics.tokenization import tokenize


def score(
    captions: Mapping[str, str] | Sequence[str],
    references: Mapping[str, Sequence[str]] | Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] | None = None,
    tokenizer: Tokenizer = "karpathy",
    idf: Idf = "references",
) -> Scores:
    """Score captions against their references; metrics, 95 % intervals, and values of each image.

    captions and references: by image id, or in the same order. metrics: some of Bleu_1 to Bleu_4,
    METEOR, ROUGE_L, CIDEr, SPICE and SPIDEr, by default those that need no Java. Values equal those
    of pycocoevalcap, over PTB tokens. tokenizer: unicode for captions of any language, without
    METEOR and SPICE, which read English. idf: source of CIDEr's document frequencies; coco for
    those of COCO's train2014, which suit a few images, or one. The result prints as a table. Raises
    InputError if the images differ, JavaError if SPICE cannot run.

    >>> found = score(["a red house"], [["a red house", "a house on a hill"]])  # doctest: +SKIP
    >>> found.metrics["Bleu_4"], found.warnings  # doctest: +SKIP
    """
    if not isinstance(captions, Mapping) and not isinstance(references, Mapping):
        if len(captions) != len(references):
            raise InputError(
                f"captions and references differ in number: {len(captions)} and "
                f"{len(references)}; give one list of references per caption"
            )
        captions = {str(number): caption for number, caption in enumerate(captions)}
        references = {str(number): texts for number, texts in enumerate(references)}
    if not isinstance(captions, Mapping) or not isinstance(references, Mapping):
        raise InputError(
            "captions and references are of different kinds: a mapping and a sequence; give two "
            "mappings by image id, or two sequences"
        )
    for image_id, texts in references.items():
        # a text is a sequence of texts too, of its letters
        is_list = isinstance(texts, Collection) and not isinstance(texts, str)
        if not is_list or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"references of image {image_id!r} are not a list of texts: {texts!r}; give a list "
                "of one or more texts per caption"
            )
    for image_id, caption in captions.items():
        if not isinstance(caption, str):
            raise InputError(
                f"caption of image {image_id!r} is not a text: {caption!r}; give a text"
            )
    candidates = tokenize({name: [caption] for name, caption in captions.items()}, tokenizer)
    tokens = tokenize(references, tokenizer)
    needs_spice = metrics is not None and not {"SPICE", "SPIDEr"}.isdisjoint(metrics)
    no_spice = None if needs_spice else f"name it in metrics; {NEEDS}"
    return score_tokens(
        candidates, tokens, metrics=metrics, no_spice=no_spice, tokenizer=tokenizer, idf=idf
    )
