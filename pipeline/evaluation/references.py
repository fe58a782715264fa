"""References that captions are scored against, of annotations of any form.

They are the test split of annotations that name their splits, else all of their images.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, starmap
from operator import attrgetter
from pathlib import Path
from typing import cast

from a2cap.data.annotations.image_rows import ImageValues, StoredImages
from a2cap.data.annotations.layouts import DICTIONARY
from a2cap.data.annotations.read import read_all
from a2cap.data.annotations.record import CAPTION_FIELDS, REFERENCE_FIELDS, Fields
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.unicode_words import script_of
from a2cap.data.errors import InputError
from a2cap.data.files.sealed_folder import check_skip_limit
from a2cap.data.identities import Identities, Key
from a2cap.data.image_ids import IdRule, results_id, sample_ids
from a2cap.data.tokenizers import Tokenizer
from a2cap.pipeline.engine.artifact_names import CAPTIONS, REFERENCES
from a2cap.pipeline.metrics.tokenization import tokenize

logger = logging.getLogger(__name__)

_FIELDS = Fields(captions=(*REFERENCE_FIELDS, *CAPTION_FIELDS), is_scored=True)
_LOGGED_ITEMS = 5
_MOST_LETTERS = 0.5
"""Share of letters of a script that makes it that of the captions."""


@dataclass(frozen=True)
class References:
    """References of images by id, in the order of their file, as written or as PTB tokens.

    own_ids: ids that the file gives images beside their names, None for an image without one.
    orders: places of the images' first captions in the file.
    may_be_tokens: True for the form of a2's references.json.
    rule: of the ids of files, path if their numbers are not different.
    """

    texts: Mapping[str, list[str]]
    own_ids: Mapping[str, Key | None]
    orders: Mapping[str, int] = field(default_factory=dict)
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
        script, share = script_of(chain.from_iterable(self.texts.values()))
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
        pairs = ((identity, self.own_ids.get(identity)) for identity in self.texts)
        return Identities(pairs, rule=self.rule)

    def in_order(self, captions: StoredImages, name: str) -> list[str]:
        """Return the images of captions that a file lists without any, with a notice of the order.

        Raises InputError for another number of them.
        """
        ids = list(self.texts)
        if len(captions) != len(ids):
            raise InputError(
                f"{name} has {len(captions):,} captions without images, the references "
                f"{len(ids):,} images; name the image of each, or give one for each image, in "
                "the order of the references"
            )
        pairs = zip(ids[:2], captions.rows(), strict=False)
        texts = [(i, "".join(text for text, _ in row.captions)) for i, row in pairs]
        first = [f"{self.key_of(i)}: {text[:40]!r}" for i, text in texts]
        notice = "captions of %s are taken in the order of the references' images: %s"
        logger.warning(notice, name, ", ".join(first))
        orders = {
            "by id": sorted(ids, key=lambda i: results_id(str(self.key_of(i)).zfill(12))),
            "of first captions": sorted(ids, key=lambda i: self.orders.get(i, 0)),
        }
        if mismatched := [order for order, sorted_ids in orders.items() if sorted_ids != ids]:
            logger.warning(
                "the images have another order %s; check the pairs, or give captions with ids",
                " and ".join(mismatched),
            )
        return ids

    def key_of(self, image_id: str) -> Key:
        """Return an image's own id, or else the id of its file."""
        own_id = self.own_ids.get(image_id)
        return image_id if own_id is None else own_id


def reference_fields(columns: Sequence[str] = (), *, beside_captions: bool = False) -> Fields:
    """Return the fields of references, with those that are named.

    beside_captions: of a file that has both, whose captions are no references.
    """
    names = columns or (REFERENCE_FIELDS if beside_captions else _FIELDS.captions)
    return replace(_FIELDS, captions=names, has_all=len(columns) > 1)


def read_references(path: Path, fields: Fields = _FIELDS) -> References:
    """Return the references of annotations in any layout: their test split, or all images.

    Raises InputError for an unknown layout, too many bad items, and splits without test.
    """
    annotations = read_all(path, fields)
    images, skipped = cast("StoredImages", annotations.images), annotations.skipped
    for item in skipped[:_LOGGED_ITEMS]:
        logger.warning("skipped in %s: %s (%s)", path, item.image_id, item.reason)
    check_skip_limit(skipped, len(images) + len(skipped), "references")
    if images[0].split:
        images = images.of_split("test")
    if not images:
        raise InputError(f"no image of {str(path)!r} is in its test split; name other references")
    if not any(raw.strip() for row in images.rows() for raw, _ in row.captions):
        raise InputError(f"no reference of {str(path)!r} has words; name other references")
    has_own_ids = any(row.own_id is not None for row in images.rows())
    return References(
        ImageValues(images, lambda row: [raw for raw, _ in row.captions]),
        ImageValues(images, attrgetter("own_id")) if has_own_ids else _preprocessed_ids(path),
        ImageValues(images, attrgetter("order")),
        annotations.layout == DICTIONARY,
        annotations.rule,
    )


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
    if not results:
        raise InputError("nothing to score: 0 captions; caption at least one image")
    if unknown:
        names = [str(references.key_of(identity)) for identity in list(references.texts)[:2]]
        forms = (
            f". Ids of captions: {sample_ids(unknown[:2])}; of references (their own ids, else the "
            f"file names without suffix): {sample_ids(names)}"
        )
        raise InputError(
            f"{len(unknown):,} of {len(results):,} captions have no reference: "
            f"{sample_ids(unknown)}; remove them, or add references for those images"
            + forms
            * (len(unknown) == len(results))
        )
    if missing and not allow_missing:
        keys = [references.key_of(identity) for identity in missing]
        raise InputError(
            f"{missing_captions(keys, len(references.texts))}; caption them, or score the others "
            "with --allow-missing"
        )
    return missing


def missing_captions(missing: Sequence[Key], total: int) -> str:
    """Return a message with the number of images without a caption, and the first of them."""
    count = f"{len(missing):,} of {total:,}"
    return f"{count} images with references have no caption: {sample_ids([*map(str, missing)])}"


def _preprocessed_ids(references: Path) -> Mapping[str, Key | None]:
    """Return the ids of the annotations that the captions beside a2's references.json have."""
    captions = references.with_name(CAPTIONS)
    if references.name != REFERENCES or not captions.is_file():
        return {}
    return CaptionFile(captions).identities.own_ids


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
