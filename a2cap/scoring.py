"""Scores of captions that Python programs hold."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from a2cap.data.annotations.json_items import BadItem
from a2cap.data.annotations.record import Fields, raw_image
from a2cap.data.errors import InputError
from a2cap.data.tokenizers import Tokenizer
from a2cap.pipeline.evaluation.references import read_references
from a2cap.pipeline.evaluation.results import read_captions
from a2cap.pipeline.metrics.all_metrics import Scores
from a2cap.pipeline.metrics.all_metrics import score as score_tokens
from a2cap.pipeline.metrics.cider import Idf
from a2cap.pipeline.metrics.metric_table import metric_name, needs_java
from a2cap.pipeline.metrics.spice import NEEDS
from a2cap.pipeline.metrics.tokenization import tokenize

_Groups = dict[Any, list[str]]
_Item = Mapping[str, object]
AnyCaptions = Mapping[Any, str] | Iterable[str] | Iterable[_Item] | str | Path
"""Captions by image id, in order, as COCO's results, a single one, or a file."""
AnyReferences = (
    Mapping[Any, Sequence[str]] | Iterable[Sequence[str]] | Iterable[_Item] | Sequence[str] | Path
)
"""References in the same forms, a list of them for each caption."""


def score(
    captions: AnyCaptions,
    references: AnyReferences,
    *,
    metrics: Sequence[str] | None = None,
    tokenizer: Tokenizer = "karpathy",
    idf: Idf = "references",
) -> Scores:
    """Score captions against their references; metrics, 95 % intervals, and values of each image.

    captions and references: by image id, or in the same order; a single caption with its
        references; lists of COCO's {"image_id", "caption"}; or the paths of files of any form.
    metrics: some of Bleu_1 to Bleu_4, METEOR, ROUGE_L, CIDEr, SPICE and SPIDEr, also as papers
        write them (BLEU-4), of the whole set (distinct_1) or `module:function`, by default those
        that need no Java. Values equal those of pycocoevalcap, over PTB tokens.
    tokenizer: unicode for captions of any language, without METEOR and SPICE, which read English.
    idf: source of CIDEr's document frequencies; coco for those of COCO's train2014, which suit a
        few images, or one.
    The result prints as a table. Raises InputError if the images differ, JavaError if SPICE cannot
    run.

    >>> scores = score(["a red house"], [["a red house", "a house on a hill"]])  # doctest: +SKIP
    >>> scores.metrics["Bleu_4"], scores.warnings  # doctest: +SKIP
    """
    texts, groups = _by_image(captions, references)
    candidates = tokenize({name: [caption] for name, caption in texts.items()}, tokenizer)
    tokens = tokenize(groups, tokenizer)
    names = None if metrics is None else [metric_name(name) for name in metrics]
    no_spice = None if names and needs_java(names) else f"name it in metrics; {NEEDS}"
    return score_tokens(
        candidates, tokens, metrics=names, no_spice=no_spice, tokenizer=tokenizer, idf=idf
    )


def _by_image(captions: AnyCaptions, references: AnyReferences) -> tuple[dict[Any, str], _Groups]:
    """Return the caption and the references of each image, by the ids of the captions."""
    if _is_file(captions) and _is_file(references):
        groups = read_references(Path(str(references)))
        results = read_captions(Path(str(captions)), groups)
        keys = {i: results.keys.get(i, groups.key_of(i)) for i in groups.texts}
        texts = {results.keys[i]: caption for i, caption in results.captions.items()}
        return texts, {keys[i]: group for i, group in groups.texts.items()}
    if isinstance(captions, str):  # a single caption with its references
        single = [references] if isinstance(references, str) else references
        return _by_image({"0": captions}, cast("AnyReferences", {"0": single}))
    mapped = _mapped(captions, "captions"), _mapped(references, "references")
    if [*map(type, mapped)] == [list, list] and len(mapped[0]) != len(mapped[1]):
        raise InputError(
            f"captions and references differ in number: {len(mapped[0])} and "
            f"{len(mapped[1])}; give one list of references per caption"
        )
    if type(mapped[0]) is not type(mapped[1]):
        raise InputError(
            "captions and references are of different kinds: a mapping and a sequence; give two "
            "mappings by image id, or two sequences"
        )
    captions_of, texts_of = (m if isinstance(m, dict) else dict(enumerate(m)) for m in mapped)
    if not isinstance(mapped[0], dict):
        captions_of = {str(number): text for number, text in captions_of.items()}
    names = {str(name): name for name in captions_of}  # 49 and "49" are one image
    by_name = {names.get(str(name), name): _group(name, texts) for name, texts in texts_of.items()}
    return {name: _caption(name, text) for name, text in captions_of.items()}, by_name


def _mapped(values: object, what: str) -> dict[Any, Any] | list[Any]:
    """Return captions or references by image, or as a list in their order."""
    if isinstance(values, Mapping):
        return dict(values)
    items = list(values) if isinstance(values, Iterable) else [values]
    if not items or not isinstance(items[0], Mapping):
        return items
    texts: dict[Any, Any] = {}
    for number, item in enumerate(items):
        try:
            image = raw_image(f"item {number}", item, Fields())
        except BadItem as error:
            raise InputError(f"item {number} of {what}: {error}; fix or remove it") from error
        texts.setdefault(image.key, []).extend(image.captions)
    return texts


def _is_file(value: object) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and os.path.isfile(value))  # noqa: PTH113  (any text)


def _group(image_id: object, texts: object) -> list[str]:
    # a text is a sequence of texts too, of its letters
    listed = texts if isinstance(texts, Collection) and not isinstance(texts, str) else [None]
    group = [text for text in listed if isinstance(text, str)]
    if len(group) != len(listed):
        raise InputError(
            f"references of image {image_id!r} are not a list of texts: {texts!r}; give a list "
            "of one or more texts per caption"
        )
    return group


def _caption(image_id: object, caption: object) -> str:
    if isinstance(caption, list) and len(caption) == 1:  # as pycocoevalcap has them
        caption = caption[0]
    if not isinstance(caption, str):
        raise InputError(f"caption of image {image_id!r} is not a text: {caption!r}; give a text")
    return caption
