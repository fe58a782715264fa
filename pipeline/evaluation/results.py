"""Captions to score and the references that they are scored against, of any form of `layouts`.

References are the test split of annotations that name their splits, else all of their images.
Captions without images are in the order of the references.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, starmap
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from a2cap.data.annotations.json_items import BadItem
from a2cap.data.annotations.layouts import DICTIONARY, read_raw
from a2cap.data.annotations.read import (
    check_skip_limit,
    collection_paused,
    read_all,
    read_caption,
)
from a2cap.data.annotations.record import (
    CAPTION_FIELDS,
    PREDICTION_FIELDS,
    REFERENCE_FIELDS,
    Fields,
    RawImage,
)
from a2cap.data.annotations.summary import SPECIAL_TOKENS
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.unicode_words import script_of, without_false_spaces
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import write_json
from a2cap.data.identities import NO_OWN_IDS, Identities, Key, normal_key
from a2cap.data.image_ids import IdRule, named_id, names_file, results_id, sample_ids
from a2cap.data.tokenizers import Tokenizer
from a2cap.pipeline.engine.artifact_names import CAPTIONS, REFERENCES
from a2cap.pipeline.metrics.tokenization import tokenize

logger = logging.getLogger(__name__)

_CAPTIONS = Fields(captions=(*PREDICTION_FIELDS, *CAPTION_FIELDS), is_scored=True)
_REFERENCES = Fields(captions=(*REFERENCE_FIELDS, *CAPTION_FIELDS), is_scored=True)
_BESIDE_CAPTIONS = Fields(captions=REFERENCE_FIELDS, is_scored=True)
_LOGGED_ITEMS = 5
_MOST_LETTERS = 0.5
"""Share of letters of a script that makes it that of the captions."""
_REMEDY = (
    'name the files with their suffix, as "image", or the ids of the references, as "image_id"'
)


@dataclass(frozen=True)
class References:
    """References of images by id, in the order of their file, as written or as PTB tokens.

    own_ids: ids that the file gives images beside their names. orders: places of the images' first
    captions in the file. may_be_tokens: True for the form of a2's references.json. rule: of the ids
    of files, path if their numbers are not different.
    """

    texts: Mapping[str, list[str]]
    own_ids: Mapping[str, Key]
    orders: Mapping[str, int]
    may_be_tokens: bool = False
    rule: IdRule = "number"

    def tokens(self, tokenizer: Tokenizer = "karpathy") -> dict[str, list[str]]:
        """Return the tokens of the references by image id; tokenizer: as for `tokenize`."""
        tokens = tokenize(self.texts, tokenizer)
        # Tokenising tokens again would change some: "m&m" becomes "m & m".
        is_done = self.may_be_tokens and _are_tokens(self.texts, tokens)
        return dict(self.texts) if is_done else tokens

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer for the script of the references, with a notice of Unicode words."""
        script, share = script_of(chain(*self.texts.values()))
        if script == "LATIN" or share <= _MOST_LETTERS:
            return "karpathy"
        logger.warning(
            "%.0f %% of the letters of the references are %s: captions are compared as Unicode "
            "words, without METEOR and SPICE, which read English; --tokenizer decides",
            100 * share,
            script,
        )
        return "unicode"

    @cached_property
    def identities(self) -> Identities:
        """The ids of the images in their file, beside those of the image files."""
        own = ((identity, self.own_ids.get(identity)) for identity in self.texts)
        return Identities(own, rule=self.rule)

    def key_of(self, image_id: str) -> Key:
        """Return an image's own id, or else the id of its file."""
        return self.own_ids.get(image_id, image_id)


def _states_file(image: RawImage) -> bool:
    """Return True for a record that has an id and the name of a file, not one for both."""
    return image.own_id is not None and normal_key(image.file) != normal_key(image.own_id)


def _parts(file: str) -> list[str]:
    return [part for part in PurePosixPath(file).parts if part not in ("/", "..")]


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
    return replace(_CAPTIONS, captions=[column]) if column else _CAPTIONS


def reference_fields(columns: Sequence[str] = (), *, beside_captions: bool = False) -> Fields:
    """Return the fields of references, with those that are named.

    beside_captions: of a file that has both, whose captions are no references.
    """
    if columns:
        return replace(_REFERENCES, captions=columns, has_all=len(columns) > 1)
    return _BESIDE_CAPTIONS if beside_captions else _REFERENCES


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
        linked = References({image_id: [""] for image_id in own}, own, {})
        results = [read_captions(path, linked) for path in paths]
    return [dict(result.captions) for result in results]


def read_captions(
    path: Path, references: References | None = None, fields: Fields = _CAPTIONS
) -> Results:
    """Return the captions of a file, linked with the images of the references.

    Raises InputError for another layout, a bad item, a duplicate image, and captions without images
    whose number is not that of the references. An empty caption is one without words, as for
    pycocoevalcap.
    """
    name = repr(str(path))

    def reject(position: str, reason: str) -> None:
        raise InputError(f"{position} of {name}: {reason}; fix or remove it")

    with collection_paused():
        images = list(read_raw(path, reject, fields).images)
    if all(not image.file for image in images):
        ids = _in_order(images, references, name)
        keys: list[Key] = [references.key_of(i) for i in ids] if references else [*ids]
    else:
        keys = [image.key for image in images]
        ids = _linked(images, references, name)
    _require_one_caption(images, ids, name)
    captions = {i: _caption(image, name) for i, image in zip(ids, images, strict=True)}
    stated = [(i, image) for i, image in zip(ids, images, strict=True) if _states_file(image)]
    own = {i: image.own_id for i, image in stated if image.own_id is not None}
    results = Results(captions, dict(zip(ids, keys, strict=True)), own)
    _warn_about(results.captions, results.keys, name)
    return results


def _linked(images: Sequence[RawImage], references: References | None, name: str) -> list[str]:
    """Return the ids of captioned images; unknown ones have those of their files."""
    if references is None:
        return [_file_id(image, name) for image in images]
    read = partial(references.identities.reader, f"captions of {name}", remedy=_REMEDY)
    unclear, own = read(), read(prefer="annotation")
    ids = []
    for image in images:
        identity = _by_file(image, references)
        if identity is None and (image.own_id is not None or not _names_file(image)):
            identity = unclear(image.key) if image.own_id is None else own(image.own_id)
        unknown = _file_id(image, name)
        if identity is None or identity not in references.texts:
            # an unknown id may be the number of a file that has references
            identity = f"id {image.key}" if unknown in references.texts else unknown
        ids.append(identity)
    for summary in filter(None, (unclear.summary, own.summary)):
        logger.info("%s", summary)
    return ids


def _by_file(image: RawImage, references: References) -> str | None:
    """Return the id of the image whose file a record states, None for one without references.

    The file counts before the id: `image_id` is by COCO's definition an id of the annotations,
    whatever file has that number.
    """
    if not _names_file(image):
        return None
    # `a2 caption` writes the paths that it read: the longest end that has references
    parts = _parts(image.file)
    ends = (named_id("/".join(parts[at:]), references.rule) for at in range(len(parts)))
    return next((identity for identity in ends if identity in references.texts), None)


def _names_file(image: RawImage) -> bool:
    return _states_file(image) or names_file(str(image.key))


def _file_id(image: RawImage, name: str) -> str:
    if not image.file:
        raise InputError(f"{image.position} of {name} names no image; name the image of each")
    return named_id("/".join(_parts(image.file)) or "?")


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


def read_references(path: Path, fields: Fields = _REFERENCES) -> References:
    """Return the references of annotations in any layout: their test split, or all images.

    Raises InputError for an unknown layout, too many bad items, and splits without test.
    """
    annotations = read_all(path, fields)
    skipped = annotations.skipped
    for item in skipped[:_LOGGED_ITEMS]:
        logger.warning("skipped in %s: %s (%s)", path, item.image_id, item.reason)
    check_skip_limit(skipped, len(annotations.images) + len(skipped), "references")
    images = annotations.images
    if any(image.split for image in images):
        images = tuple(image for image in images if image.split == "test")
    if not images:
        raise InputError(f"no image of {str(path)!r} is in its test split; name other references")
    own_ids = {image.image_id: image.own_id for image in images if image.own_id is not None}
    return References(
        {image.image_id: [caption.raw for caption in image.captions] for image in images},
        own_ids or _preprocessed_ids(path),
        annotations.orders,
        annotations.layout == DICTIONARY.name,
        annotations.rule,
    )


def _preprocessed_ids(references: Path) -> Mapping[str, Key]:
    """Return the ids of the annotations that the captions beside a2's references.json have."""
    captions = references.with_name(CAPTIONS)
    if references.name != REFERENCES or not captions.is_file():
        return {}
    return CaptionFile(captions).identities.own


def require_same_images(
    results: Mapping[str, Key], references: References, *, allow_missing: bool = False
) -> list[str]:
    """Return the images that have references but no caption.

    results: captioned images by id, as their file names them. Raises InputError for missing ones
    unless `allow_missing` is set: scores over fewer images cannot be compared. Raises InputError
    for captions of images without references, and without any caption.
    """
    missing = [identity for identity in references.texts if identity not in results]
    unknown = [str(key) for identity, key in results.items() if identity not in references.texts]
    if unknown:
        raise InputError(
            f"{len(unknown):,} of {len(results):,} captions have no reference: "
            f"{sample_ids(unknown)}; remove them, or add references for those images"
            + (_id_forms(unknown, references) if len(unknown) == len(results) else "")
        )
    if missing and not allow_missing:
        keys = [references.key_of(identity) for identity in missing]
        raise InputError(
            f"{missing_captions(keys, len(references.texts))}; caption them, or score the others "
            "with --allow-missing"
        )
    if not results:
        raise InputError("nothing to score: 0 captions; caption at least one image")
    return missing


def missing_captions(missing: Sequence[Key], total: int) -> str:
    """Return a message with the number of images without a caption, and the first of them."""
    count = f"{len(missing):,} of {total:,}"
    return f"{count} images with references have no caption: {sample_ids([*map(str, missing)])}"


def _id_forms(captioned: Sequence[str], references: References) -> str:
    """Return examples of the ids of both files."""
    names = [str(references.key_of(identity)) for identity in list(references.texts)[:2]]
    return (
        f". Ids of captions: {sample_ids(captioned[:2])}; of references (their own ids, else the "
        f"file names without suffix): {sample_ids(names)}"
    )


def _in_order(images: Sequence[RawImage], references: References | None, name: str) -> list[str]:
    """Return the images of captions that are listed without any, with a notice of the order."""
    keys = list(references.texts if references else map(str, range(1, len(images) + 1)))
    if len(images) != len(keys):
        raise InputError(
            f"{name} has {len(images):,} captions without images, the references {len(keys):,} "
            "images; give one caption for each image, in the order of the references"
        )
    if references:
        pairs = zip(keys, images, strict=False)
        first = [f"{references.key_of(i)}: {str(image.captions[0])[:40]!r}" for i, image in pairs]
        logger.warning(
            "captions of %s are taken in the order of the references' images: %s",
            name,
            ", ".join(first[:2]),
        )
        orders = {
            "by id": sorted(keys, key=lambda i: results_id(str(references.key_of(i)).zfill(12))),
            "of first captions": sorted(keys, key=lambda i: references.orders.get(i, 0)),
        }
        if others := [order for order, sorted_keys in orders.items() if sorted_keys != keys]:
            logger.warning(
                "the images have another order %s; check the pairs, or give captions with ids",
                " and ".join(others),
            )
    return keys


def _caption(image: RawImage, name: str) -> str:
    try:
        return read_caption(image.captions[0], may_be_empty=True).raw
    except BadItem as error:
        raise InputError(
            f"caption at {image.position} of {name}: {error}; write it again"
        ) from error


def _require_one_caption(images: Sequence[RawImage], ids: Sequence[str], name: str) -> None:
    """Raise InputError for images with more or less than one caption."""
    counts = dict.fromkeys(ids, 0)
    for identity, image in zip(ids, images, strict=True):
        counts[identity] += len(image.captions)
    keys = {identity: str(image.key) for identity, image in zip(ids, images, strict=True)}
    several = [keys[identity] for identity, count in counts.items() if count > 1]
    wrong = several or [keys[identity] for identity, count in counts.items() if not count]
    if wrong:
        what, remedy = ("more than one", "keep one caption for") if several else ("no", "caption")
        raise InputError(
            f"{len(wrong):,} images have {what} caption in {name}: {sample_ids(wrong)}; "
            f"{remedy} each"
        )


def _warn_about(captions: Mapping[str, str], keys: Mapping[str, Key], name: str) -> None:
    """Warn of captions without words, and of special tokens in them."""
    if empty := [str(keys[i]) for i, caption in captions.items() if not caption.strip()]:
        logger.warning(
            "%s captions of %s are empty: %s; they are scored as having no words",
            f"{len(empty):,}",
            name,
            sample_ids(empty),
        )
    if marked := [i for i, caption in captions.items() if SPECIAL_TOKENS.search(caption)]:
        logger.warning(
            "%.3g %% of the captions of %s have special tokens, which metrics compare as words, as "
            "in %s: %r; remove them",
            100 * len(marked) / len(captions),
            name,
            keys[marked[0]],
            captions[marked[0]][:60],
        )


def _are_tokens(
    references: Mapping[str, Sequence[str]], tokens: Mapping[str, Sequence[str]]
) -> bool:
    """Return True for references that tokenising leaves as they are, but for some in a hundred.

    Tokens such as "m&m" are divided again. Captions as people write them lose points and capitals
    too, and are divided at apostrophes and where other scripts have points.
    """

    def is_changed(text: str, again: str) -> bool:
        is_divided = text.replace(" ", "") == again.replace(" ", "")
        return text != again and not (is_divided and text.isascii() and "'" not in text)

    pairs = zip(chain(*references.values()), chain(*tokens.values()), strict=True)
    changed = list(starmap(is_changed, pairs))
    return 100 * sum(changed) <= len(changed)
