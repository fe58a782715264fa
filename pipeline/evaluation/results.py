"""Caption files to score: COCO results, and the references that they are scored against.

A results file is a list of `{"image_id": 42, "caption": "a dog"}`. References are COCO captions
(`images` and `annotations`), the test split of annotations that name their splits (Karpathy layout,
captions.jsonl), or the `references.json` of the preprocess stage.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from a2cap.data.annotations.read import LONGEST_CAPTION, read_annotations
from a2cap.data.config import Tokenizer
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.image_ids import image_id, results_id, sample_ids
from a2cap.pipeline.metrics.tokenization import tokenize

logger = logging.getLogger(__name__)

_LOGGED_ITEMS = 5

_RESULTS_FORM = 'write a list of {"image_id": 42, "caption": "a dog"}'


def read_results(path: Path) -> dict[str, str]:
    """Return the captions of a COCO results file by image id, in the file's order.

    Raises InputError for another layout, a duplicate image, and a caption that is empty or longer
    than LONGEST_CAPTION. An empty caption is an error and not a score of 0, because it is the mark
    of a file or a decoder that failed.
    """
    entries = read_json(path)
    if not isinstance(entries, list):
        raise InputError(f"results {str(path)!r} are not a list; {_RESULTS_FORM}")
    pairs = [_result(entry, f"entry {n} of {str(path)!r}") for n, entry in enumerate(entries, 1)]
    counts = Counter(identity for identity, _ in pairs)
    if repeated := [identity for identity, count in counts.items() if count > 1]:
        raise InputError(
            f"{len(repeated):,} images have more than one caption in {str(path)!r}: "
            f"{sample_ids(repeated)}; keep one caption for each"
        )
    if empty := [identity for identity, caption in pairs if not caption.strip()]:
        raise InputError(
            f"{len(empty):,} captions in {str(path)!r} are empty: {sample_ids(empty)}; "
            "caption every image"
        )
    return dict(pairs)


def results_entries(captions: Mapping[str, str]) -> list[dict[str, int | str]]:
    """Return the entries of a COCO results file in id order."""
    return [{"image_id": results_id(i), "caption": captions[i]} for i in sorted(captions)]


def write_results(path: Path, captions: Mapping[str, str]) -> None:
    """Write a COCO results file; equal captions give equal bytes."""
    write_json(path, results_entries(captions))


def read_references(path: Path) -> dict[str, list[str]]:
    """Return the references by image id, as written; those of a `references.json` are PTB tokens.

    Raises InputError for an unknown layout and for images without a reference.
    """
    return _read_references(path)[0]


def read_reference_tokens(path: Path, tokenizer: Tokenizer = "karpathy") -> dict[str, list[str]]:
    """Return the tokens of the references by image id; tokenizer: as for `tokenize`."""
    references, tokenized = _read_references(path)
    # Tokenising tokens again would change some: "m&m" becomes "m & m".
    return references if tokenized else tokenize(references, tokenizer)


def require_same_images(
    results: Collection[str], references: Collection[str], *, allow_missing: bool = False
) -> list[str]:
    """Return the images that have references but no caption.

    Raises InputError for them unless `allow_missing` is set: scores over fewer images cannot be
    compared. Raises InputError for captions of images without references, and without any caption.
    """
    known, captioned = set(references), set(results)
    missing = [identity for identity in references if identity not in captioned]
    unknown = [identity for identity in results if identity not in known]
    if unknown:
        raise InputError(
            f"{len(unknown):,} of {len(captioned):,} captions have no reference: "
            f"{sample_ids(unknown)}; remove them, or add references for those images"
        )
    if missing and not allow_missing:
        raise InputError(
            f"{missing_captions(missing, len(known))}; caption them, or score the others with "
            "--allow-missing"
        )
    if not captioned:
        raise InputError("nothing to score: 0 captions; caption at least one image")
    return missing


def missing_captions(missing: Sequence[str], total: int) -> str:
    """Return a message with the number of images without a caption, and the first of them."""
    count = f"{len(missing):,} of {total:,}"
    return f"{count} images with references have no caption: {sample_ids(missing)}"


def _result(entry: object, source: str) -> tuple[str, str]:
    if not isinstance(entry, dict) or not {"image_id", "caption"} <= entry.keys():
        raise InputError(f"{source} lacks image_id or caption: {_short(entry)}; {_RESULTS_FORM}")
    return _image_id(entry["image_id"], source), _caption(entry["caption"], source)


def _image_id(value: object, source: str) -> str:
    # In Python, True is an int.
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return f"{value:012d}"
    if isinstance(value, str) and value:
        # `image_id` removes a suffix, which an id does not have: "photo.v2" would lose ".v2".
        return image_id(f"{value}.jpg")
    raise InputError(f"image_id in {source} is {_short(value)}; give a number or a string")


def _caption(value: object, source: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"caption in {source} is {_short(value)}; give a string")
    if len(value) > LONGEST_CAPTION:
        raise InputError(
            f"caption in {source} has {len(value):,} characters, the limit is "
            f"{LONGEST_CAPTION:,}; shorten it"
        )
    # JSON may contain lone surrogates, which cannot be written as UTF-8.
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"caption in {source} is not valid Unicode: {_short(value)}; write it again as UTF-8"
        ) from error
    return value


def _read_references(path: Path) -> tuple[dict[str, list[str]], bool]:
    """Return the references, and True if they are PTB tokens."""
    # By its name, because it is not one JSON document.
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return _test_split(path), False
    document = read_json(path)
    if isinstance(document, dict) and {"images", "annotations"} <= document.keys():
        return _coco_captions(document["images"], document["annotations"], repr(str(path))), False
    if isinstance(document, dict) and "images" in document:
        return _test_split(path), False
    if isinstance(document, dict) and document and _are_sentences(document.values()):
        name = repr(str(path))
        tokens = {
            _image_id(key, name): [_caption(text, f"{key!r} of {name}") for text in sentences]
            for key, sentences in document.items()
        }
        return tokens, True
    raise InputError(
        f"no references in {str(path)!r}: unknown layout; "
        "give COCO captions, a Karpathy file, or a references.json"
    )


def _are_sentences(values: Iterable[object]) -> bool:
    return all(
        isinstance(group, list) and group and all(isinstance(s, str) for s in group)
        for group in values
    )


def _test_split(path: Path) -> dict[str, list[str]]:
    annotations = read_annotations(path)
    for skipped in annotations.skipped[:_LOGGED_ITEMS]:
        logger.warning("skipped in %s: %s (%s)", path, skipped.image_id, skipped.reason)
    references = {
        image.image_id: [caption.raw for caption in image.captions]
        for image in annotations.images
        if image.split == "test"
    }
    if not references:
        raise InputError(f"no image of {str(path)!r} is in its test split; name other references")
    return references


def _coco_captions(images: object, annotations: object, name: str) -> dict[str, list[str]]:
    references: dict[str, list[str]] = {}
    for index, image in enumerate(_objects(images, "images", name)):
        references[_image_id(image.get("id"), f"images[{index}] of {name}")] = []
    for index, annotation in enumerate(_objects(annotations, "annotations", name)):
        source = f"annotations[{index}] of {name}"
        identity = _image_id(annotation.get("image_id"), source)
        if identity not in references:
            raise InputError(f"{source} names image {identity!r}, which 'images' lacks; add it")
        references[identity].append(_caption(annotation.get("caption"), source))
    bare = [identity for identity, captions in references.items() if not captions]
    if bare or not references:
        raise InputError(
            f"{len(bare):,} of {len(references):,} images in {name} have no caption: "
            f"{sample_ids(bare) or 'there are no images'}; give each at least one"
        )
    return references


def _objects(value: object, key: str, name: str) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InputError(f"{key!r} in {name} is not a list of objects; give COCO captions")
    return value


def _short(value: object) -> str:
    return f"{value!r:.60}"
