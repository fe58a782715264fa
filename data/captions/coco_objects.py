"""Categories that captions name: COCO's 80, for CHAIR and grounding, and those of other boxes.

coco_objects.yaml lists the words of each of COCO's and states how the list was made; other
categories are named by their own names and regular plurals.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

from a2cap.data.annotations.instances import category_names, load_instances, read_categories
from a2cap.data.errors import InputError
from a2cap.data.files.yaml_file import read_yaml
from a2cap.data.image_ids import sample_ids

ImageObjects = Mapping[str, frozenset[str]]
"""Image id -> COCO's categories in the image."""

_NONE, _LAST, _FUNCTION = "none", "last", "function"
"""Sections of the file that are no categories."""


@dataclass(frozen=True)
class ObjectWords:
    """Phrases that name categories.

    categories: phrase of singular and plural -> category, "" for none. last: words that count only
    before a function word, a word in -ing or the end. longest: words of the longest phrase.
    """

    categories: Mapping[tuple[str, ...], str]
    last: frozenset[str]
    function: frozenset[str]
    longest: int

    def mentions(self, tokens: Sequence[str]) -> list[tuple[range, str]]:
        """Return positions and category of each mention in lower-case tokens, in their order.

        The longest phrase counts: a "hot dog" is not a dog.
        """
        mentions: list[tuple[range, str]] = []
        start = 0
        while start < len(tokens):
            for end in range(min(start + self.longest, len(tokens)), start, -1):
                category = self.categories.get(tuple(tokens[start:end]))
                if category is not None and self._is_whole(tokens, start, end):
                    mentions += [(range(start, end), category)] if category else []
                    start = end - 1
                    break
            start += 1
        return mentions

    def _is_whole(self, tokens: Sequence[str], start: int, end: int) -> bool:
        """Return False for a word of `last` in front of what may be its noun."""
        if end == len(tokens) or " ".join(tokens[start:end]) not in self.last:
            return True
        return tokens[end] in self.function or tokens[end].endswith("ing")


@cache
def coco_words() -> ObjectWords:
    """Return the words of the bundled list."""
    sections = read_yaml(Path(__file__).with_name("coco_objects.yaml"))
    words = {name: cast(str, text).split(", ") for name, text in sections.items()}
    last, function = words.pop(_LAST), cast(str, sections[_FUNCTION]).split()
    del words[_FUNCTION]
    categories = {
        tuple(form.split()): "" if name == _NONE else name
        for name, phrases in words.items()
        for phrase in phrases
        for form in (phrase, _plural(phrase))
    }
    longest = max(map(len, categories))
    return ObjectWords(categories, frozenset(last), frozenset(function), longest)


def words_of(categories: Iterable[str]) -> ObjectWords:
    """Return the words that name these categories: COCO's by the bundled list, others by name.

    The name of a category overrides synonyms and plurals of other ones.
    """
    names, bundled = set(categories), coco_words()
    phrases = {phrase: c for phrase, c in bundled.categories.items() if c in names}
    if phrases:  # what the list says to be no category is none beside COCO's
        phrases |= {phrase: c for phrase, c in bundled.categories.items() if not c}
    for name in sorted(names):
        for plural in plurals(name):
            phrases.setdefault(tuple(plural.split()), name)
    phrases |= {tuple(name.split()): name for name in names}
    return replace(bundled, categories=phrases, longest=max(map(len, phrases), default=0))


@cache
def coco_categories() -> frozenset[str]:
    """Return the names of the 80 categories."""
    return frozenset(coco_words().categories.values()) - {""}


def plurals(phrase: str) -> tuple[str, ...]:
    """Return the candidate regular plurals of a noun; forms that do not exist are harmless."""
    ending = (f"{phrase.removesuffix('e')[:-1]}ves",) if phrase.endswith(("f", "fe")) else ()
    return (_plural(phrase), f"{phrase}s", f"{phrase}es", *ending)


def _plural(phrase: str) -> str:
    if phrase.endswith("y") and phrase[-2] not in "aeiou":
        return f"{phrase[:-1]}ies"
    return f"{phrase}es" if phrase.endswith(("s", "x", "z", "ch", "sh")) else f"{phrase}s"


def mentions_of(caption: str) -> list[str]:
    """Return the categories that a caption of PTB tokens, joined by spaces, mentions."""
    return [category for _, category in coco_words().mentions(caption.split())]


def read_coco_objects(path: Path) -> ImageObjects:
    """Return COCO's categories in each image of an instances file, crowds among them.

    Raises InputError for a file of other categories, or without boxes.
    """
    document = load_instances(path, required=("categories",))
    names = set(category_names(document).values())
    if not names or not names <= coco_categories():
        other = sample_ids(sorted(names - coco_categories()), 3) or "none"
        raise InputError(
            f"not COCO's 80 categories: {other} in {str(path)!r}; CHAIR needs COCO's "
            "instances_train2014.json or instances_val2014.json"
        )
    return read_categories(path, document)


def objects_of_images(
    references: Mapping[str, Iterable[str]], annotated: ImageObjects
) -> ImageObjects:
    """Return the categories that the instances or the references of each image have.

    references: PTB tokens. Raises InputError for images without instances.
    """
    missing = [image_id for image_id in references if image_id not in annotated]
    if missing:
        raise InputError(
            f"no instances of {len(missing):,} of {len(references):,} images: "
            f"{sample_ids(missing, 3)}; name the instances of the same images"
        )
    return {
        image_id: annotated[image_id].union(*map(mentions_of, texts))
        for image_id, texts in references.items()
    }
