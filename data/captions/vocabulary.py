"""Vocabularies: words, their token ids, and the published rules that select the words.

Published sizes on COCO: `m2` 10,201 with four specials (Cornia et al. 2020, arXiv:1912.08226; code
at aimagelab/meshed-memory-transformer@5d06009), `neuraltalk2` 9,487 with UNK alone (Karpathy's
prepro.py, karpathy/neuraltalk2@35d539c), `aoanet` 10,369 (Huang et al. 2019, arXiv:1908.06954).
M2's published counts give its size exactly. All three also count validation captions, the last two
also test captions.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from a2cap.data.annotations.json_items import BadItem, list_member, text_member
from a2cap.data.annotations.read import AnnotatedImage, Caption
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")

_M2_PUNCTUATION = frozenset("'`.?!,:-;")
_M2_TOKEN = re.compile(
    r"[^\W_]+?(?=n't\b)|n't\b|'(?:s|re|ll|ve|m)\b|[^\W_]+(?:[.:][^\W_]+)*|[^\w\s]"
)


def _file_tokens(caption: Caption) -> tuple[str, ...]:
    return caption.tokens


def _m2_tokens(caption: Caption) -> tuple[str, ...]:
    # M2 uses spaCy. These are the rules that matter: all but 43 of 845,001 tokens of 80,749 COCO
    # captions are in M2's published list, which also counts runs of white space as words.
    words = _M2_TOKEN.findall(caption.raw.lower())
    return tuple(word for word in words if word not in _M2_PUNCTUATION)


@dataclass(frozen=True)
class VocabularyPreset:
    """A published rule: words of `tokenize` that occur at least `min_count` times in `splits`."""

    min_count: int
    splits: frozenset[str]
    tokenize: Callable[[Caption], tuple[str, ...]]


_ALL = frozenset({"train", "val", "test"})

PRESETS: Mapping[str, VocabularyPreset] = MappingProxyType(
    {
        "karpathy": VocabularyPreset(5, frozenset({"train"}), _file_tokens),
        "m2": VocabularyPreset(5, _ALL - {"test"}, _m2_tokens),
        "neuraltalk2": VocabularyPreset(6, _ALL, _file_tokens),
        "aoanet": VocabularyPreset(5, _ALL, _file_tokens),
    }
)


def tokens_of(caption: Caption, preset: str) -> tuple[str, ...]:
    """Return the words of a caption by the rule of `preset`."""
    return _preset(preset).tokenize(caption)


def count_words(images: Iterable[AnnotatedImage], preset: str) -> Counter[str]:
    """Count the words in the captions of the splits of `preset`."""
    rule = _preset(preset)
    captions = chain.from_iterable(p.captions for p in images if p.split in rule.splits)
    return Counter(chain.from_iterable(map(rule.tokenize, captions)))


@dataclass(frozen=True)
class Vocabulary:
    """V words by token id; 0 to 3 are the special tokens `<pad> <bos> <eos> <unk>`."""

    words: tuple[str, ...]
    preset: str

    @classmethod
    def from_counts(
        cls, counts: Mapping[str, int], preset: str = "karpathy", *, min_count: int | None = None
    ) -> "Vocabulary":
        """Select the frequent words, by descending count, then alphabetically.

        min_count: overrides the preset's. Raises InputError if no word is frequent enough.
        """
        least = _preset(preset).min_count if min_count is None else min_count
        kept = [word for word in counts if counts[word] >= least and word not in SPECIALS]
        if not kept:
            most = max(counts.values(), default=0)
            raise InputError(
                f"no word occurs {least} times or more (most frequent: {most}); "
                "lower preprocess.min_count or add captions"
            )
        # ties in alphabetical order, or the ids would depend on the order of the captions
        kept.sort(key=lambda word: (-counts[word], word))
        return cls((*SPECIALS, *kept), preset)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the id of each token, UNK if it has none, without special tokens."""
        return [self._ids.get(token, UNK) for token in tokens]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the caption up to the first `<eos>`, without `<pad>` and `<bos>`."""
        words = []
        for token_id in map(int, ids):
            if token_id == EOS:
                break
            if token_id not in (PAD, BOS):
                words.append(self.word(token_id))
        return " ".join(words)

    def word(self, token_id: int) -> str:
        """Return the word or special token of an id; raises InputError outside [0, V)."""
        if not 0 <= token_id < len(self.words):
            raise InputError(
                f"no token {token_id} in a vocabulary of {len(self.words):,}; "
                "use the vocabulary that the captions or the model were made with"
            )
        return self.words[token_id]

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of words and preset, equal on every machine."""
        canonical = json.dumps(self._document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON."""
        write_json(path, self._document())

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Load a file that `save` wrote; raises InputError for any other."""
        document = read_json(path)
        try:
            words = tuple(map(str, texts := list_member(document, "words")))
            if list(words) != texts:
                raise BadItem("a word is not a string")
            if words[: len(SPECIALS)] != SPECIALS:
                raise BadItem(f"the words do not start with {' '.join(SPECIALS)}")
            if len(set(words)) < len(words):
                raise BadItem("duplicate word")
            preset = text_member(document, "preset")
            if preset not in PRESETS:
                raise BadItem(f"unknown preset {preset!r}")
        except BadItem as error:
            raise InputError(
                f'not a vocabulary: {str(path)!r} ({error}); run "a2 preprocess" again'
            ) from error
        return cls(words, preset)

    @cached_property
    def _ids(self) -> dict[str, int]:
        # without special tokens: the text "<eos>" in a caption must not end it
        return {word: n for n, word in enumerate(self.words) if n >= len(SPECIALS)}

    def _document(self) -> dict[str, str | Sequence[str]]:
        return {"preset": self.preset, "words": list(self.words)}


def _preset(name: str) -> VocabularyPreset:
    if name not in PRESETS:
        raise InputError(
            f"unknown vocabulary preset: {name!r}; use one of {', '.join(sorted(PRESETS))}"
        )
    return PRESETS[name]
