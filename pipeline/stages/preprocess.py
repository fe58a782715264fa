"""Stage preprocess: vocabulary, token ids, references and document frequencies of annotations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import JsonValue

from a2cap.data.annotations.layouts import IN_NO_SPLIT
from a2cap.data.annotations.read import (
    Annotations,
    Caption,
    SkippedItem,
    check_skip_limit,
)
from a2cap.data.captions.caption_file import write_captions
from a2cap.data.captions.document_frequencies import count_document_frequencies
from a2cap.data.captions.presets import count_words
from a2cap.data.captions.vocabulary import Vocabulary
from a2cap.data.config import PreprocessConfig
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import write_json
from a2cap.pipeline.engine.artifacts import (
    CAPTIONS,
    DOCUMENT_FREQUENCIES,
    PREPROCESS,
    REFERENCES,
    VOCABULARY,
)
from a2cap.pipeline.engine.inputs import Inputs
from a2cap.pipeline.engine.key import key_fields
from a2cap.pipeline.engine.stage import EventLog, Input, PreparedStage
from a2cap.pipeline.metrics.java import find_java
from a2cap.pipeline.metrics.tokenization import tokenize

CODE_VERSION = 3


def preprocess_stage(
    config: PreprocessConfig,
    *,
    inputs: Mapping[str, Input],
    read: Callable[[], Annotations],
    rules: Mapping[str, str],
) -> PreparedStage:
    """Return the stage; inputs: the file of `annotations` and optionally a `split_list`.

    read: returns their content, which the checks before the stage have read already. rules: the
    fields of `data`, without defaults, by which it is read.
    """
    fields: dict[str, JsonValue] = {"preprocess": key_fields(config)}
    if rules:
        fields["data"] = dict(rules)
    return PreparedStage(
        name=PREPROCESS,
        version=CODE_VERSION,
        fields=fields,
        inputs=inputs,
        outputs=(VOCABULARY, CAPTIONS, REFERENCES, DOCUMENT_FREQUENCIES),
        work=partial(preprocess, config, inputs["annotations"].path, read),
    )


def preprocess(
    config: PreprocessConfig,
    annotations: Path,
    read: Callable[[], Annotations],
    directory: Path,
    inputs: Inputs,
    events: EventLog,
) -> Sequence[SkippedItem]:
    """Write the outputs into `directory`; return the skipped captions and images."""
    find_java()  # fails before any work
    found = read()
    unusable = require_usable(found, annotations)
    kept = (replace(p, captions=p.captions[: config.references]) for p in found.images)
    found = replace(found, images=tuple(kept))
    # tokens of all references, so that training needs no JVM
    raw = {p.image_id: [c.raw for c in p.captions] for p in found.images}
    references = tokenize(raw, config.tokenizer)
    if config.tokenizer != "karpathy":
        found = _with_words(found, references)
    vocabulary = make_vocabulary(found, config)
    vocabulary.save(directory / VOCABULARY)
    write_captions(
        directory / CAPTIONS,
        found.images,
        vocabulary,
        preset=config.vocabulary,
        max_length=config.max_length,
        dataset=found.dataset,
    )
    events.write("vocabulary", words=len(vocabulary))
    write_json(directory / REFERENCES, references)
    training = {p.image_id: references[p.image_id] for p in found.images if p.split == "train"}
    count_document_frequencies(training, vocabulary).save(directory / DOCUMENT_FREQUENCIES)
    return unusable


def make_vocabulary(found: Annotations, config: PreprocessConfig) -> Vocabulary:
    """Return the vocabulary of the training split."""
    return Vocabulary.from_counts(
        count_words(found.images, config.vocabulary),
        config.vocabulary,
        tokenizer=config.tokenizer,
        min_count=config.min_count,
    )


def _with_words(found: Annotations, references: Mapping[str, Sequence[str]]) -> Annotations:
    """Return the annotations with these tokens as words."""
    images = []
    for image in found.images:
        pairs = zip(image.captions, references[image.image_id], strict=True)
        captions = tuple(Caption(caption.raw, tuple(text.split())) for caption, text in pairs)
        images.append(replace(image, captions=captions))
    return replace(found, images=tuple(images))


def require_usable(found: Annotations, annotations: Path) -> list[SkippedItem]:
    """Return the unusable items; raise InputError for too many, or for a split without images."""
    unusable = [item for item in found.skipped if item.reason != IN_NO_SPLIT]
    check_skip_limit(unusable, len(found.images) + len(unusable), "annotations")
    for split in ("train", "val"):  # without a test split, validation is evaluated
        if not any(image.split == split for image in found.images):
            raise InputError(
                f"no image of split {split!r} in {str(annotations)!r}; "
                "give each of train and val at least one"
            )
    return unusable
