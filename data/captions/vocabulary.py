"""Vocabulary: words and their token ids."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.annotations.json_items import BadItem, list_member, text_member
from a2cap.data.captions.presets import PRESETS, count_words, preset_of
from a2cap.data.data_config import PreprocessConfig
from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.sealed_folder import digest_of
from a2cap.data.tokenizers import TOKENIZERS, Tokenizer

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")


@dataclass(frozen=True)
class Vocabulary:
    """V words by token id; 0 to 3 are the special tokens `<pad> <bos> <eos> <unk>`."""

    words: tuple[str, ...]
    preset: str
    tokenizer: Tokenizer = "karpathy"

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        preset: str = "karpathy",
        *,
        tokenizer: Tokenizer = "karpathy",
        min_count: int | None = None,
    ) -> "Vocabulary":
        """Select the frequent words, by descending count, then alphabetically.

        min_count: overrides the preset's. Raises InputError if no word is frequent enough.
        """
        rule = preset_of(preset)
        least = rule.min_count if min_count is None else min_count
        kept = [word for word in counts if counts[word] >= least and word not in SPECIALS]
        if not kept:
            most = max(counts.values(), default=0)
            raise InputError(
                f"no word occurs {least} times or more (most frequent: {most}); "
                "lower preprocess.min_count or add captions"
            )
        # ties in alphabetical order, or the ids would depend on the order of the captions
        kept.sort(key=lambda word: (-counts[word], word))
        return cls((*SPECIALS, *kept[: rule.most]), preset, tokenizer)

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
        """Hex SHA-256 of words, preset and tokenizer, equal on every machine."""
        return digest_of(self._document())

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
            spelled = document.get("tokenizer", "karpathy") if isinstance(document, dict) else None
            tokenizer = next((rule for rule in TOKENIZERS if rule == spelled), None)
            if tokenizer is None:
                raise BadItem(f"unknown tokenizer {spelled!r}")
        except BadItem as error:
            raise InputError(
                f'not a vocabulary: {str(path)!r} ({error}); run "a2 preprocess" again'
            ) from error
        return cls(words, preset, tokenizer)

    @cached_property
    def _ids(self) -> dict[str, int]:
        # without special tokens: the text "<eos>" in a caption must not end it
        return {word: n for n, word in enumerate(self.words) if n >= len(SPECIALS)}

    def _document(self) -> dict[str, str | Sequence[str]]:
        # a later field: without it, digests stay as they were
        later = {} if self.tokenizer == "karpathy" else {"tokenizer": self.tokenizer}
        return {"preset": self.preset, "words": list(self.words), **later}


def make_vocabulary(images: Iterable[AnnotatedImage], config: PreprocessConfig) -> Vocabulary:
    """Return the vocabulary of the training split."""
    return Vocabulary.from_counts(
        count_words(images, config.vocabulary),
        config.vocabulary,
        tokenizer=config.tokenizer,
        min_count=config.min_count,
    )
