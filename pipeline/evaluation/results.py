"""Caption files to score, and the references that they are scored against.

Captions are COCO results (a list of `{"image_id": 42, "caption": "a dog"}`), the same as JSON
lines, those of `a2 caption --output`, `{"42": "a dog"}`, a CSV or Flickr token file, or a text with
a caption on each line, in the order of the references. References are COCO captions (`images` and
`annotations`), the test split of annotations that name their splits (Karpathy layout,
captions.jsonl), a CSV or Flickr token file, `{"42": ["A dog."]}`, or the `references.json` of the
preprocess stage, the same with tokens.
"""

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, starmap
from pathlib import Path
from types import MappingProxyType

from a2cap.data.annotations.raw_image import RawImage
from a2cap.data.annotations.read import LONGEST_CAPTION, read_annotations
from a2cap.data.annotations.tables import TOKEN_LINE, read_table
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import parse_json, read_json, read_text, write_json
from a2cap.data.identities import NO_OWN_IDS, Identities, Key
from a2cap.data.image_ids import named_id, sample_ids
from a2cap.data.tokenizers import Tokenizer
from a2cap.pipeline.metrics.tokenization import tokenize

logger = logging.getLogger(__name__)

_LOGGED_ITEMS = 5

_RESULTS_FORM = 'write a list of {"image_id": 42, "caption": "a dog"}'

_TABLES = (".csv", ".tsv", ".token")
_LIST_AS_TEXT = re.compile(r"\[\s*['\"]")


def read_results(path: Path, images: Iterable[str] = ()) -> dict[str, str]:
    """Return the captions of a file by image id, in the file's order.

    images: ids of the references, in the order of a text without ids. Raises InputError for another
    layout, a duplicate image, and a caption that is empty or longer than LONGEST_CAPTION. An empty
    caption is an error and not a score of 0, because it is the mark of a file or a decoder that
    failed.
    """
    pairs = _caption_pairs(path, list(images))
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


def results_entries(
    captions: Mapping[str, str],
    identities: Identities = NO_OWN_IDS,
    files: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Key]]:
    """Return the entries of a COCO results file in the order of the images' ids.

    They have the ids of the annotations, and the name of the file where that is another one.
    """
    return [
        {
            "image_id": identities.own_id(image_id),
            "caption": captions[image_id],
            **({"image": files[image_id]} if image_id in files else {}),
        }
        for image_id in sorted(captions)
    ]


def write_results(
    path: Path,
    captions: Mapping[str, str],
    identities: Identities = NO_OWN_IDS,
    files: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a COCO results file; equal captions give equal bytes."""
    write_json(path, results_entries(captions, identities, files))


def read_references(path: Path) -> dict[str, list[str]]:
    """Return the references by image id, as written; those of a `references.json` are PTB tokens.

    Raises InputError for an unknown layout and for images without a reference.
    """
    return _read_references(path)[0]


def read_reference_tokens(path: Path, tokenizer: Tokenizer = "karpathy") -> dict[str, list[str]]:
    """Return the tokens of the references by image id; tokenizer: as for `tokenize`."""
    references, may_be_tokens = _read_references(path)
    tokens = tokenize(references, tokenizer)
    # Tokenising tokens again would change some: "m&m" becomes "m & m".
    return references if may_be_tokens and _are_tokens(references, tokens) else tokens


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
            + (_id_forms(unknown, missing) if len(unknown) == len(captioned) else "")
        )
    if missing and not allow_missing:
        raise InputError(
            f"{missing_captions(missing, len(known))}; caption them, or score the others with "
            "--allow-missing"
        )
    if not captioned:
        raise InputError("nothing to score: 0 captions; caption at least one image")
    return missing


def _id_forms(captioned: Sequence[str], referenced: Sequence[str]) -> str:
    """Return examples of the ids of both files, and the fields that they come from."""
    return (
        f". Ids of captions (image_id): {sample_ids(captioned[:2])}; of references (id of COCO "
        f"captions, else the file name without its suffix): {sample_ids(referenced[:2])}"
    )


def missing_captions(missing: Sequence[str], total: int) -> str:
    """Return a message with the number of images without a caption, and the first of them."""
    count = f"{len(missing):,} of {total:,}"
    return f"{count} images with references have no caption: {sample_ids(missing)}"


def _caption_pairs(path: Path, images: list[str]) -> list[tuple[str, str]]:
    name = repr(str(path))
    kind = path.name.removesuffix(".gz")
    if kind.endswith(_TABLES) or (kind.endswith(".txt") and _is_token_file(path)):
        found, _ = _read_table(path)
        return [(_image_id(i.file, name), _caption(c, name)) for i in found for c in i.captions]
    if kind.endswith(".txt"):
        return _lines(path, images)
    if kind.endswith(".jsonl"):
        # not splitlines(): it also splits at U+2028, which JSON strings may contain
        lines = [line for line in read_text(path).split("\n") if line.strip()]
        content: object = [
            parse_json(line, where=f"line {n} of {name}") for n, line in enumerate(lines, 1)
        ]
    else:
        content = read_json(path)
    if isinstance(content, dict) and content and not {"images", "annotations"} <= content.keys():
        return [
            (_image_id(key, name), _caption(text, f"{key!r} of {name}"))
            for key, text in content.items()
        ]
    if not isinstance(content, list):
        raise InputError(f"results {name} are not a list; {_RESULTS_FORM}")
    known = set(images)
    return [_result(entry, f"entry {n} of {name}", known) for n, entry in enumerate(content, 1)]


def _is_token_file(path: Path) -> bool:
    return TOKEN_LINE.fullmatch(read_text(path).partition("\n")[0]) is not None


def _lines(path: Path, images: list[str]) -> list[tuple[str, str]]:
    """Return the lines of a text as the captions of images."""
    lines = read_text(path).removesuffix("\n").split("\n")  # a caption may contain U+2028
    if len(lines) != len(images):
        raise InputError(
            f"{str(path)!r} has {len(lines):,} lines, the references {len(images):,} images; give "
            "one caption on each line, in the order of the references"
        )
    return [(i, _caption(line, str(path))) for i, line in zip(images, lines, strict=True)]


def _result(entry: object, source: str, known: Collection[str]) -> tuple[str, str]:
    if isinstance(entry, dict) and "caption" in entry:
        if "image_id" in entry:
            return _image_id(entry["image_id"], source), _caption(entry["caption"], source)
        if isinstance(image := entry.get("image"), str) and Path(image).name:
            return _path_id(image, known), _caption(entry["caption"], source)
    raise InputError(f"{source} lacks image_id or caption: {_short(entry)}; {_RESULTS_FORM}")


def _path_id(image: str, known: Collection[str]) -> str:
    """Return the id of an image that `a2 caption` read: the longest end of its path in `known`."""
    parts = [part for part in Path(image).parts if part not in ("/", "..")]
    ends = [named_id("/".join(parts[at:])) for at in range(len(parts))]
    return next((identity for identity in ends if identity in known), ends[-1])


def _image_id(value: object, source: str) -> str:
    # In Python, True is an int.
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return f"{value:012d}"
    if isinstance(value, str) and value:
        return named_id(value)
    raise InputError(f"image_id in {source} is {_short(value)}; give a number or a string")


def _caption(value: object, source: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"caption in {source} is {_short(value)}; give a string")
    if _LIST_AS_TEXT.match(value):
        raise InputError(
            f"caption in {source} is a list that was written as text: {_short(value)}; write one "
            "caption, or the list itself"
        )
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
    """Return the references, and True for a layout in which they may be PTB tokens."""
    # By its name, because it is not one JSON document.
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return _test_split(path), False
    if path.name.removesuffix(".gz").endswith((*_TABLES, ".txt")):
        return _table_references(path), False
    document = read_json(path)
    if isinstance(document, dict) and {"images", "annotations"} <= document.keys():
        return _coco_captions(document["images"], document["annotations"], repr(str(path))), False
    if isinstance(document, dict) and "images" in document:
        return _test_split(path), False
    if isinstance(document, dict) and document:
        name = repr(str(path))
        groups = {key: [v] if isinstance(v, str) else v for key, v in document.items()}
        if _are_sentences(groups.values()):
            found = {
                _image_id(key, name): [_caption(text, f"{key!r} of {name}") for text in texts]
                for key, texts in groups.items()
            }
            return found, True
    raise InputError(
        f"no references in {str(path)!r}: unknown layout; "
        "give COCO captions, a Karpathy file, or a references.json"
    )


def _are_sentences(values: Iterable[object]) -> bool:
    return all(
        isinstance(group, list) and group and all(isinstance(s, str) for s in group)
        for group in values
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


def _table_references(path: Path) -> dict[str, list[str]]:
    """Return the references of a table: its test split, or all rows if it has no test split."""
    images, _ = _read_table(path)
    chosen = [image for image in images if image.split == "test"] or images
    name = repr(str(path))
    return {
        _image_id(image.file, name): [_caption(text, name) for text in image.captions]
        for image in chosen
    }


def _read_table(path: Path) -> tuple[list[RawImage], bool]:
    def skip(identity: str, reason: str) -> None:
        logger.warning("skipped in %s: %s (%s)", path, identity, reason)

    return read_table(read_text(path), str(path), skip)


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
    references: dict[str, list[tuple[int, str]]] = {}
    rejected: set[str] = set()
    for index, image in enumerate(_objects(images, "images", name)):
        references[_image_id(image.get("id"), f"images[{index}] of {name}")] = []
    for index, annotation in enumerate(_objects(annotations, "annotations", name)):
        source = f"annotations[{index}] of {name}"
        identity = _image_id(annotation.get("image_id"), source)
        if identity not in references:
            raise InputError(f"{source} names image {identity!r}, which 'images' lacks; add it")
        # VizWiz: captions that say only that the image is bad
        if annotation.get("is_rejected") or annotation.get("is_precanned"):
            rejected.add(identity)
            continue
        number = annotation.get("id")
        order = number if isinstance(number, int) else index
        references[identity].append((order, _caption(annotation.get("caption"), source)))
    bare = [i for i, captions in references.items() if not captions and i not in rejected]
    if bare or not references:
        raise InputError(
            f"{len(bare):,} of {len(references):,} images in {name} have no caption: "
            f"{sample_ids(bare) or 'there are no images'}; give each at least one"
        )
    # by id, as `preprocess.references` counts them; COCO's files are in another order
    return {i: [text for _, text in sorted(found)] for i, found in references.items() if found}


def _objects(value: object, key: str, name: str) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InputError(f"{key!r} in {name} is not a list of objects; give COCO captions")
    return value


def _short(value: object) -> str:
    return f"{value!r:.60}"
