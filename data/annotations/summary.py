"""What was read of annotations, for people to look at before a run, and what may not be meant."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from html import unescape
from types import MappingProxyType

from a2cap.data.annotations.caption import LONGEST_CAPTION, AnnotatedCaption, tokenize
from a2cap.data.annotations.read import IN_NO_SPLIT, Annotations
from a2cap.data.captions.unicode_words import breaks_words, script_of, unicode_words
from a2cap.data.data_config import PreprocessConfig
from a2cap.data.errors import InputError
from a2cap.data.identities import Identities
from a2cap.data.tokenizers import Tokenizer

logger = logging.getLogger(__name__)

_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")

MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>|&(?:[a-zA-Z]+|#[0-9]+);")
"""A tag or an entity of HTML."""
_SPECIAL_TOKENS = re.compile(
    r"</?(?:s|start|end|bos|eos|sos|unk|pad|cls|sep)>|\[(?:SEP|CLS|PAD|UNK|MASK|BOS|EOS)\]"
    r"|<\|endoftext\|>|\bUNK\b",
    re.IGNORECASE,
)
_PREAMBLE = re.compile(
    r"\W*(?:(?:sure|certainly|of course|absolutely)\s*[,!.:]|as an ai\b"
    r"|here(?:'s| is| are)\b[^.:]{0,40}\b(?:caption|description)s?\b)",
    re.IGNORECASE,
)
_MISSING = re.compile(r"\s*(?:nan|none|null|n/a|\|\|\|.*)\s*", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]")
_LONG = 60
_EQUAL_SHARE = 0.01
_RAREST = 5

DOUBTS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "have tags or entities (preprocess.clean: html)": lambda text: MARKUP.search(
            _SPECIAL_TOKENS.sub("", text)
        ),
        f"have more than {_LONG} words (preprocess.max_words)": lambda t: len(t.split()) > _LONG,
        "have special tokens, which metrics compare as words": _SPECIAL_TOKENS.search,
        "begin as an answer of a chat model": _PREAMBLE.match,
        "stand for a missing value": _MISSING.fullmatch,
        "have control characters": _CONTROL.search,
        "are empty, and scored as having no words": lambda text: not text.strip(),
        "have no letters": lambda text: text.strip() and not any(map(str.isalpha, text)),
    }
)
"""What captions may have that was not meant, and a test for it."""


def summarize(annotations: Annotations) -> str:
    """Return what was read in one line."""
    images = annotations.images
    words = unicode_words if needs_unicode(annotations) else str.split
    lengths = sorted(len(words(text)) for text in _texts(annotations))
    characters = Counter("".join(_texts(annotations)))
    rarest = sorted(characters, key=lambda c: (characters[c], c))[:_RAREST]
    splits = Counter(image.split for image in images if image.split)
    parts = [
        f"{len(images):,} images",
        f"{len(lengths):,} captions ({_per_image(annotations)})",
        f"{lengths[0]} to {lengths[-1]} words, mean {sum(lengths) / len(lengths):.1f}",
        f"rarest characters {', '.join(f'{c!r} {characters[c]:,}' for c in rarest)}",
        ", ".join(f"{split} {count:,}" for split, count in splits.items()) or "no splits",
    ]
    identities = Identities((image.image_id, image.own_id) for image in images)
    if identities:
        first = images[0]
        parts.append(f"ids other than those of the files: {first.own_id!r} is {first.file!r}")
    skipped = [item for item in annotations.skipped if item.reason != IN_NO_SPLIT]
    parts += [f"{len(skipped):,} items skipped"] if skipped else []
    return f"read as {annotations.layout}: {'; '.join(parts)}"


def doubts(annotations: Annotations, tokenizer: Tokenizer = "karpathy") -> list[str]:
    """Return a line for each kind of caption that may not be meant, with a count and an example.

    tokenizer: the one that is set, which another script than Latin needs to be unicode.
    """
    lines = [*doubtful_captions(_captions(annotations)), *_repeated(annotations)]
    script, share = script_of(_texts(annotations))
    if tokenizer != "unicode" and share > 0.5 and script != "LATIN":
        lines.append(
            f"{100 * share:.0f} % of the letters are {script}: words and metrics of other scripts "
            "than Latin need preprocess.tokenizer=unicode, without METEOR and SPICE"
        )
    if tokenizer != "unicode" and (dotted := [t for t in _texts(annotations) if "İ" in t]):
        count = sum(1 for _ in _texts(annotations))
        lines.append(
            f"{len(dotted):,} of {count:,} captions have 'İ', which is two characters in "
            f"lower case unless preprocess.tokenizer=unicode is set: {dotted[0][:60]!r}"
        )
    return lines


def doubtful_captions(captions: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each of DOUBTS, with a count and an example; captions: image and text."""
    counts, examples, total = Counter[str](), dict[str, str](), 0
    for image, text in captions:
        total += 1
        for what in (what for what, is_so in DOUBTS.items() if is_so(text)):
            counts[what] += 1
            examples.setdefault(what, f"{image} {text[:60]!r}")
    return [
        f"{counts[what]:,} of {total:,} captions {what}: {examples[what]}"
        for what in DOUBTS
        if what in counts
    ]


def needs_unicode(annotations: Annotations) -> bool:
    """Return True if most letters are of scripts without spaces, a word a sentence for others."""
    script, share = script_of(_texts(annotations))
    return share > 0.5 and breaks_words(script)


def cleaned(annotations: Annotations, config: PreprocessConfig) -> Annotations:
    """Return the captions without markup and without long ones, if that is set."""
    if config.clean is None and config.max_words is None:
        return annotations
    images, left_out = [], 0
    for image in annotations.images:
        captions = [_without_markup(c) if config.clean else c for c in image.captions]
        most = config.max_words or LONGEST_CAPTION
        kept = [c for c in captions if c.tokens and len(c.raw.split()) <= most]
        left_out += len(captions) - len(kept)
        images += [replace(image, captions=tuple(kept))] if kept else []
    if not images:
        raise InputError(
            f"no caption has {config.max_words} words or less; raise preprocess.max_words"
        )
    logger.warning(
        "%s captions are left out by preprocess.clean and max_words, with %s images",
        f"{left_out:,}",
        f"{len(annotations.images) - len(images):,}",
    )
    return replace(annotations, images=tuple(images))


def _without_markup(caption: AnnotatedCaption) -> AnnotatedCaption:
    if not MARKUP.search(caption.raw):
        return caption  # with the tokens of the file
    raw = " ".join(unescape(_TAG.sub(" ", caption.raw)).split())
    return AnnotatedCaption(raw, tokenize(raw))


def _per_image(annotations: Annotations) -> str:
    counts = Counter(len(image.captions) for image in annotations.images)
    if len(counts) == 1:
        return f"{next(iter(counts))} an image"
    if len(counts) <= 3:
        texts = (
            f"{images:,} {'image has' if images == 1 else 'images have'} {count}"
            for count, images in sorted(counts.items())
        )
        return ", ".join(texts)
    mean = sum(count * images for count, images in counts.items()) / counts.total()
    return f"{min(counts)} to {max(counts)} an image, mean {mean:.1f}"


def _repeated(annotations: Annotations) -> Iterator[str]:
    """Yield the caption that most images share, if more than 1 % of them do."""
    images = Counter(
        text for image in annotations.images for text in {caption.raw for caption in image.captions}
    )
    [(text, count)] = images.most_common(1)
    if count > max(2, _EQUAL_SHARE * len(annotations.images)):
        yield f"{count:,} of {len(annotations.images):,} images share one caption: {text[:60]!r}"


def _captions(annotations: Annotations) -> Iterator[tuple[str, str]]:
    for image in annotations.images:
        for caption in image.captions:
            yield image.image_id, caption.raw


def _texts(annotations: Annotations) -> Iterator[str]:
    return (text for _, text in _captions(annotations))
