"""Captions to score, of any form of `layouts`, linked with the images of their references.

Captions without images are in the order of the references.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from a2cap.data.annotations.caption import checked_caption
from a2cap.data.annotations.layouts import read_raw
from a2cap.data.annotations.read import collection_paused
from a2cap.data.annotations.record import (
    CAPTION_FIELDS,
    PREDICTION_FIELDS,
    Fields,
    RawImage,
    Reading,
)
from a2cap.data.annotations.summary import doubtful_captions
from a2cap.data.captions.unicode_words import without_false_spaces
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import write_json
from a2cap.data.identities import NO_OWN_IDS, Identities, Key, normal_key
from a2cap.data.image_ids import named_id, names_file, sample_ids
from a2cap.pipeline.evaluation.references import References

logger = logging.getLogger(__name__)

_FIELDS = Fields(captions=(*PREDICTION_FIELDS, *CAPTION_FIELDS), is_scored=True)
_REMEDY = (
    'name the files with their suffix, as "image", or the ids of the references, as "image_id"'
)


@dataclass(frozen=True)
class Results:
    """One caption for each image by its id, and the ids as the file has them.

    own_ids: ids that the file gives images beside the names of their files.
    """

    captions: Mapping[str, str]
    keys: Mapping[str, Key]
    own_ids: Mapping[str, Key] = field(default_factory=dict)


def caption_fields(column: str | None = None) -> Fields:
    """Return the fields of captions to score, with the one that is named."""
    return replace(_FIELDS, captions=[column]) if column else _FIELDS


def read_results(path: Path) -> dict[str, str]:
    """Return the captions of a file by image id; raises InputError as `read_captions` does."""
    return dict(read_captions(path).captions)


def read_together(
    paths: Sequence[Path], references: References | None = None
) -> list[dict[str, str]]:
    """Return the captions of several files by image id.

    Without references, ids are linked with files as those records state that have both.
    """
    results = [read_captions(path, references) for path in paths]
    own = {i: key for result in results for i, key in result.own_ids.items()}
    if own and references is None:
        linked = References({image_id: [""] for image_id in own}, own)
        results = [read_captions(path, linked) for path in paths]
    return [dict(result.captions) for result in results]


def read_captions(
    path: Path, references: References | None = None, fields: Fields = _FIELDS
) -> Results:
    """Return the captions of a file, linked with the images of the references.

    Raises InputError for another layout, a bad item, a duplicate image, and captions without images
    whose number is not that of the references. An empty caption is one without words, as for
    pycocoevalcap.
    """
    name = repr(str(path))

    def reject(position: str, reason: str) -> None:
        raise InputError(f"{position} of {name}: {reason}; fix or remove it")

    reading = Reading(fields, reject)
    with collection_paused():
        images = list(read_raw(path, reading).images)
    is_listed = bool(images) and not any(image.file for image in images)
    if not is_listed:
        ids = _linked(images, references, name)
    elif references is None:
        ids = [str(number) for number in range(1, len(images) + 1)]
    else:
        ids = references.in_order([[*map(str, image.captions)] for image in images], name)
    keys, texts, own = dict[str, Key](), dict[str, list[str]](), dict[str, Key]()
    for i, image in zip(ids, images, strict=True):
        keys[i] = image.key if not is_listed else references.key_of(i) if references else i
        with reading.skipping(f"caption at {image.position}"):
            raws = [checked_caption(caption, may_be_empty=True)[0] for caption in image.captions]
            texts.setdefault(i, []).extend(raws)
        if image.own_id is not None and _states_file(image):
            own[i] = image.own_id
    _require_one_caption(texts, keys, name)
    captions = {i: text for i, [text] in texts.items()}
    for line in doubtful_captions([(str(keys[i]), text) for i, text in captions.items()]):
        logger.warning("%s: %s", name, line)
    return Results(captions, keys, own)


def write_results(
    path: Path,
    captions: Mapping[str, str],
    identities: Identities = NO_OWN_IDS,
    files: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a COCO results file in the order of the images' ids; equal captions give equal bytes.

    Entries have the ids of the annotations, and the name of the file where that is another one.
    """
    entries: list[dict[str, Key]] = [
        {
            "image_id": identities.own_id(image_id),
            "caption": without_false_spaces(captions[image_id]),
            **({"image": files[image_id]} if image_id in files else {}),
        }
        for image_id in sorted(captions)
    ]
    write_json(path, entries)


def _linked(images: Sequence[RawImage], references: References | None, name: str) -> list[str]:
    """Return the ids of captioned images; unknown ones have those of their files."""
    unknown = [_file_id(image, name) for image in images]
    if references is None:
        return unknown
    read = partial(references.identities.reader, f"captions of {name}", remedy=_REMEDY)
    unclear, own = read(), read(prefer="annotation")
    ids = []
    for image, file_id in zip(images, unknown, strict=True):
        identity = _by_file(image, references)
        if identity is None and (image.own_id is not None or not names_file(str(image.key))):
            identity = unclear(image.key) if image.own_id is None else own(image.own_id)
        if identity is None or identity not in references.texts:
            # an unknown id may be the number of a file that has references
            identity = f"id {image.key}" if file_id in references.texts else file_id
        ids.append(identity)
    for summary in filter(None, (unclear.summary, own.summary)):
        logger.info("%s", summary)
    return ids


def _by_file(image: RawImage, references: References) -> str | None:
    """Return the id of the image whose file a record states, None for one without references.

    The file counts before the id: `image_id` is by COCO's definition an id of the annotations,
    whatever file has that number.
    """
    if not (_states_file(image) or names_file(str(image.key))):
        return None
    # `a2 caption` writes the paths that it read: the longest end that has references
    parts = _parts(image.file)
    ends = (named_id("/".join(parts[at:]), references.rule) for at in range(len(parts)))
    return next((identity for identity in ends if identity in references.texts), None)


def _states_file(image: RawImage) -> bool:
    """Return True for a record that has an id and the name of a file, not one for both."""
    return image.own_id is not None and normal_key(image.file) != normal_key(image.own_id)


def _file_id(image: RawImage, name: str) -> str:
    if not image.file:
        raise InputError(f"{image.position} of {name} names no image; name the image of each")
    return named_id("/".join(_parts(image.file)) or "?")


def _parts(file: str) -> list[str]:
    parts = PurePosixPath(file).parts
    return [part for part in parts if part not in ("/", "..") and not part.endswith(":")]


def _require_one_caption(
    texts: Mapping[str, Sequence[str]], keys: Mapping[str, Key], name: str
) -> None:
    """Raise InputError for images with more or less than one caption."""
    several = [str(keys[i]) for i, captions in texts.items() if len(captions) > 1]
    without = [str(keys[i]) for i, captions in texts.items() if not captions]
    if several or without:
        what, remedy = ("more than one", "keep one caption for") if several else ("no", "caption")
        raise InputError(
            f"{len(several or without):,} images have {what} caption in {name}: "
            f"{sample_ids(several or without)}; {remedy} each"
        )
