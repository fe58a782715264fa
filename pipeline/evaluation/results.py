"""Captions of models and people on disk: COCO results files, and the references to score against.

A results file is a list of `{"image_id": 42, "caption": "a dog"}`. References are COCO captions
(`images` and `annotations`), any annotations that name their splits (the Karpathy layout, a
captions.jsonl), of which the test split counts, or the `references.json` of the preprocess stage.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from a2cap.data.annotations.read import LONGEST_CAPTION, read_annotations
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.image_ids import image_id, results_id, sample_ids
from a2cap.pipeline.metrics.tokenization import tokenize_references

logger = logging.getLogger(__name__)

_NAMED = 5
"""How many ids a message names before it only counts."""

_SCORE_OTHERS = "score the others alone with --allow-missing"

_RESULTS_FORM = 'write a list of {"image_id": 42, "caption": "a dog"}'


def read_results(path: Path) -> dict[str, str]:
    """The caption of each image in a COCO results file, by image id, in the file's order.

    Raises InputError where the file is not in that form, names an image twice, or holds a caption
    that is empty or longer than LONGEST_CAPTION. An empty caption is refused and not scored as 0,
    since it is the mark of a file or a decoder that failed.
    """
    entries = read_json(path)
    if not isinstance(entries, list):
        raise InputError(f"results {str(path)!r} are not a list; {_RESULTS_FORM}")
    pairs = [_result(entry, f"entry {n} of {str(path)!r}") for n, entry in enumerate(entries, 1)]
    _refuse_repeated((identity for identity, _ in pairs), path)
    _refuse_empty((identity for identity, caption in pairs if not caption.strip()), path)
    return dict(pairs)


def write_results(path: Path, captions: Mapping[str, str]) -> None:
    """Write a COCO results file, in id order: equal captions give equal bytes."""
    entries = [{"image_id": results_id(i), "caption": captions[i]} for i in sorted(captions)]
    write_json(path, entries)


def read_references(path: Path) -> dict[str, list[str]]:
    """The references of each image as they were written, by image id.

    Of a `references.json` these are its PTB tokens. Of annotations that name their splits only the
    test split is read. Raises InputError where the layout is unknown or an image has none.
    """
    return _read_references(path)[0]


def read_reference_tokens(path: Path) -> dict[str, list[str]]:
    """The PTB tokens of each image's references, as `a2cap.pipeline.metrics.score.score` wants
    them.

    A `references.json` holds them and is not tokenised again, which would alter some: "m&m"
    becomes "m & m".
    """
    references, tokenized = _read_references(path)
    return references if tokenized else tokenize_references(references)


def require_same_images(
    results: Collection[str], references: Collection[str], *, allow_missing: bool = False
) -> list[str]:
    """The images with references but no caption: none, unless `allow_missing` is set.

    Raises InputError for them otherwise, since a score over fewer images than the references
    name is not comparable to any other; and always for captions of images without references,
    and where no image has both.
    """
    known, captioned = set(references), set(results)
    missing = [identity for identity in references if identity not in captioned]
    unknown = [identity for identity in results if identity not in known]
    if unknown:
        raise InputError(
            f"{len(unknown):,} of {len(captioned):,} captions have no reference: "
            f"{sample_ids(unknown)}; remove them, or name the references of those images too"
        )
    if missing and not allow_missing:
        raise InputError(
            f"{without_caption(missing, len(known))}; caption them, or {_SCORE_OTHERS}"
        )
    if not captioned:
        raise InputError("nothing to score: 0 captions; caption at least one image")
    return missing


def without_caption(missing: Sequence[str], total: int) -> str:
    """Return a message with the number of images without a caption, and the first of them."""
    count = f"{len(missing):,} of {total:,}"
    return f"{count} images with references have no caption: {sample_ids(missing)}"


def _result(entry: object, place: str) -> tuple[str, str]:
    if not isinstance(entry, dict) or not {"image_id", "caption"} <= entry.keys():
        raise InputError(f"{place} lacks image_id or caption: {_short(entry)}; {_RESULTS_FORM}")
    return _identity(entry["image_id"], place), _text(entry["caption"], place)


def _identity(value: object, place: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return f"{value:012d}"
    if isinstance(value, str) and value:
        # An id has no suffix; without one here, the rule would cut "photo.v2" at its dot.
        return image_id(f"{value}.jpg")
    raise InputError(f"image_id in {place} is {_short(value)}; give a number or a string")


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"caption in {place} is {_short(value)}; give a string")
    if len(value) > LONGEST_CAPTION:
        raise InputError(
            f"caption in {place} has {len(value):,} characters, "
            f"at most {LONGEST_CAPTION:,} are read; shorten it"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"caption in {place} is not valid Unicode: {_short(value)}; write it again as UTF-8"
        ) from error
    return value


def _refuse_repeated(identities: Iterable[str], path: Path) -> None:
    repeated = [identity for identity, count in Counter(identities).items() if count > 1]
    if repeated:
        raise InputError(
            f"{len(repeated):,} images are captioned more than once in {str(path)!r}: "
            f"{sample_ids(repeated)}; keep one caption for each"
        )


def _refuse_empty(identities: Iterable[str], path: Path) -> None:
    empty = list(identities)
    if empty:
        raise InputError(
            f"{len(empty):,} captions in {str(path)!r} are empty: {sample_ids(empty)}; "
            "caption every image"
        )


def _read_references(path: Path) -> tuple[dict[str, list[str]], bool]:
    """The references, and whether they are PTB tokens already."""
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return _test_split(path), False
    document = read_json(path)
    if isinstance(document, dict) and {"images", "annotations"} <= document.keys():
        references = _coco_captions(document["images"], document["annotations"], path)
        return references, False
    if isinstance(document, dict) and "images" in document:
        return _test_split(path), False
    if isinstance(document, dict) and document and _are_sentences(document.values()):
        return _token_references(document, repr(str(path))), True
    raise InputError(
        f"no references in {str(path)!r}: its layout is unknown; "
        "give COCO captions, a Karpathy file, or a references.json"
    )


def _token_references(document: Mapping[str, list[object]], name: str) -> dict[str, list[str]]:
    return {
        _identity(key, name): [_text(sentence, f"{key!r} of {name}") for sentence in sentences]
        for key, sentences in document.items()
    }


def _are_sentences(values: Iterable[object]) -> bool:
    return all(
        isinstance(group, list) and group and all(isinstance(s, str) for s in group)
        for group in values
    )


def _test_split(path: Path) -> dict[str, list[str]]:
    annotations = read_annotations(path)
    for skipped in annotations.skipped[:_NAMED]:
        logger.warning("left out of %s: %s (%s)", path, skipped.image_id, skipped.reason)
    references = {
        image.image_id: [caption.raw for caption in image.captions]
        for image in annotations.images
        if image.split == "test"
    }
    if not references:
        raise InputError(f"no image of {str(path)!r} is in its test split; name other references")
    return references


def _coco_captions(images: object, annotations: object, path: Path) -> dict[str, list[str]]:
    name = repr(str(path))
    references: dict[str, list[str]] = {}
    for index, image in enumerate(_objects(images, "images", name)):
        references[_identity(image.get("id"), f"images[{index}] of {name}")] = []
    for index, annotation in enumerate(_objects(annotations, "annotations", name)):
        place = f"annotations[{index}] of {name}"
        identity = _identity(annotation.get("image_id"), place)
        if identity not in references:
            raise InputError(f"{place} captions image {identity!r}, which 'images' lacks; add it")
        references[identity].append(_text(annotation.get("caption"), place))
    bare = [identity for identity, captions in references.items() if not captions]
    if bare or not references:
        raise InputError(
            f"{len(bare):,} of {len(references):,} images in {name} have no caption: "
            f"{sample_ids(bare) or 'there is no image'}; give each at least one"
        )
    return references


def _objects(value: object, key: str, name: str) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InputError(f"{key!r} in {name} is not a list of objects; give COCO captions")
    return value


def _short(value: object) -> str:
    return f"{value!r:.60}"
