"""METEOR's table of 5.3 million English paraphrases, in a form that loads quickly.

The table is a gzip of 272 MB of text, in the order of its phrases. For a few captions, only the
blocks that may contain their phrases are read. For many, the table is written once into the user's
cache folder as arrays: a trie of the phrases, and the paraphrases of each phrase.
"""

import io
import logging
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from a2cap.data.files.cache import cache_folder, write_file
from a2cap.pipeline.metrics.ngrams import Ints
from a2cap.pipeline.metrics.pycocoevalcap import PARAPHRASES, metric_file

logger = logging.getLogger(__name__)

LONGEST = 7
"""Words of the longest phrase of the table."""

_FEW = 100_000
"""Words of captions for which blocks are read; then the whole table saves time."""
_BLOCK = 1 << 13
"""Bytes of text that are read together."""
_SIZE = 272_201_058
"""Bytes of the text, whose buffer then need not grow."""
_GZIP = 31  # zlib's window bits for a stream with the header of gzip

# A row is a probability, a phrase and its paraphrase, on a line each. No phrase is a number with
# five decimals, so such a line begins a row.
_ROW = re.compile(rb"^0\.\d{5,}\n(.+)", re.MULTILINE)
_SEPARATOR = b"|||"  # in no caption; makes a table of no rows searchable

_NO_WORD = -1


@dataclass(frozen=True)
class PhraseOccurrences:
    """Phrases of the table in a list of sentences, in order of sentences, then starts.

    sentence, start, length, phrase: (n,) each, `phrase` a node of the table's trie.
    """

    sentence: Ints
    start: Ints
    length: Ints
    phrase: Ints


@dataclass(frozen=True)
class ParaphraseTable:
    """Pairs of phrases in the order of the file.

    numbers: word -> its number.
    keys: (P,) sorted; node p + 1 of the trie has the key parent * words + number of its last word,
        and the root is node 0.
    sources, starts: (G,) nodes with paraphrases, and (G + 1,) their first rows in `targets`, (R,).
    """

    numbers: dict[str, int]
    keys: NDArray[np.int64]
    sources: NDArray[np.int32]
    starts: NDArray[np.int32]
    targets: NDArray[np.int32]

    @classmethod
    def load(cls) -> "ParaphraseTable":
        """Load the whole table from the cache, or read the file and write the cache."""
        # An .npz has a checksum of each array.
        with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):
            return cls._loaded(cache_folder() / _cached_name())
        logger.info("METEOR: preparing the paraphrases, once")
        table = table_of(paraphrase_file().parts())
        write_file(_cached_name(), table._saved())
        return table

    @classmethod
    def _loaded(cls, path: Path) -> "ParaphraseTable":
        with np.load(path) as archive:
            words = archive["words"].tobytes().decode().split("\n")
            arrays = [archive[name] for name in ("keys", "sources", "starts", "targets")]
        return cls(dict(zip(words, range(len(words)), strict=True)), *arrays)

    def _saved(self) -> bytes:
        content = io.BytesIO()
        words = np.frombuffer("\n".join(self.numbers).encode(), dtype=np.uint8)
        np.savez(content, **{**vars(self), "numbers": np.empty(0), "words": words})
        return content.getvalue()

    def occurrences(self, sentences: Sequence[Sequence[str]]) -> PhraseOccurrences:
        """Return where phrases of the table occur in sentences of words."""
        # All positions of all sentences walk down the trie together, a word each round; those that
        # leave it drop out, and each one left is an occurrence. The text "", which has no number,
        # ends each sentence, so that no phrase crosses it.
        number = self.numbers.get
        ids = [number(word, _NO_WORD) for words in sentences for word in (*words, "")]
        ends = np.cumsum([len(words) + 1 for words in sentences])
        word = np.array([*ids, _NO_WORD], dtype=np.int64)
        start, node = np.arange(len(ids)), np.zeros(len(ids), dtype=np.int64)
        starts, nodes, lengths = [], [], []
        for size in range(1, len(word)):
            node = self._children(node, word[start + size - 1])
            start, node = start[node > 0], node[node > 0]
            if not len(start):
                break
            starts.append(start)
            nodes.append(node)
            lengths.append(np.full(len(start), size))
        start, node, length = (
            np.concatenate([np.empty(0, dtype=np.int64), *parts])
            for parts in (starts, nodes, lengths)
        )
        order = np.lexsort((length, start))
        start, node, length = start[order], node[order], length[order]
        sentence = np.searchsorted(ends, start, side="right")
        return PhraseOccurrences(sentence, start - np.append(0, ends)[sentence], length, node)

    def _children(self, node: Ints, word: Ints) -> Ints:
        """Return the nodes one word further, 0 for none."""
        key = node * len(self.numbers) + word
        rows = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return np.where((word >= 0) & (self.keys[rows] == key), rows + 1, 0)

    def pairs(self, phrases: Ints, references: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the pairs of a phrase of one list with one of the other, in either order.

        Returns their rows, sources and targets.
        """
        # The table has millions of rows, the lists have far fewer nodes. So nodes are marked, the
        # groups of marked sources are expanded to rows, and those without a marked target go.
        of_first, of_second = (self._mask(nodes) for nodes in (phrases, references))
        groups = np.flatnonzero((of_first | of_second)[self.sources])  # (G,) -> (g,)
        first, sizes = self.starts[groups], np.diff(self.starts)[groups]
        offsets = np.cumsum(sizes) - sizes
        rows = np.repeat(first - offsets, sizes) + np.arange(sizes.sum())  # (g,) -> (r,)
        source, target = np.repeat(self.sources[groups], sizes), self.targets[rows]
        both = (of_first[source] & of_second[target]) | (of_second[source] & of_first[target])
        return rows[both], source[both], target[both]  # (r,) -> (n,)

    def _mask(self, nodes: Ints) -> NDArray[np.bool_]:
        mask = np.zeros(len(self.keys) + 1, dtype=np.bool_)
        mask[nodes] = True
        return mask


class ParaphraseFile:
    """Text of the table, in blocks of rows, found by the first phrase of each.

    words: number of words of captions whose paraphrases were asked for so far.
    """

    def __init__(self, text: bytes) -> None:
        matches = (_ROW.search(text, start) for start in range(0, len(text), _BLOCK))
        blocks = {row.start(): row[1] for row in matches if row}
        self._text, self.words = text, 0
        self._bounds, self._first = list(pairwise([*blocks, len(text)])), list(blocks.values())

    def parts(
        self, only: AbstractSet[bytes] | None = None
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield phrases and their paraphrases, in order; only pairs of wanted ones, if given.

        wanted: phrases, with the first one and two words of each.
        """
        heads = [phrase for phrase in only or () if phrase.count(b" ") < 2]
        blocks = set(chain.from_iterable(map(self._blocks, heads)))
        for number in range(len(self._first)) if only is None else sorted(blocks):
            start, end = self._bounds[number]
            lines = self._text[start:end].split(b"\n")
            phrases, targets = lines[1::3], lines[2::3]
            if only is None:
                yield phrases, targets
            elif not only.isdisjoint(phrases):
                rows = [
                    (phrase, other)
                    for phrase, other in zip(phrases, targets, strict=True)
                    if phrase in only and other in only
                ]
                yield [phrase for phrase, _ in rows], [other for _, other in rows]

    def _blocks(self, head: bytes) -> range:
        """Return the blocks that may contain a word, or any phrase that begins with two words."""
        last = bisect_right(self._first, head + b" \xff" if b" " in head else head)
        return range(max(bisect_left(self._first, head) - 1, 0), last)


@cache
def paraphrase_file() -> ParaphraseFile:
    """Return the file of the installed METEOR; isal decompresses it three times as fast as zlib."""
    with (
        metric_file(PARAPHRASES).open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
    ):
        return ParaphraseFile(isal_zlib.decompress(content, _GZIP, _SIZE))


@cache
def _whole_table() -> ParaphraseTable:
    return ParaphraseTable.load()


def paraphrases_of(sentences: Sequence[Sequence[str]]) -> ParaphraseTable:
    """Return the pairs of phrases that occur in sentences of words, or the whole table."""
    # For few captions it is quicker to read some blocks than to prepare the whole table, for many
    # the other way round. The words of all calls count, so that a program that scores a few
    # captions again and again gets the table too.
    if (cache_folder() / _cached_name()).is_file():
        return _whole_table()
    file = paraphrase_file()
    file.words += sum(map(len, sentences))
    if file.words > _FEW:
        return _whole_table()
    return table_of(file.parts(set(chain.from_iterable(map(phrases_of, sentences)))))


def phrases_of(words: Sequence[str]) -> Iterator[bytes]:
    """Yield all sequences of one to seven words."""
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    for start in range(len(words)):
        for end in range(start + 1, min(start + LONGEST, len(words)) + 1):
            yield b" ".join(encoded[start:end])


def table_of(parts: Iterable[tuple[list[bytes], list[bytes]]]) -> ParaphraseTable:
    """Return the table of phrases and their paraphrases."""
    numbers: dict[bytes, int] = {_SEPARATOR: 0}
    columns: tuple[list[int], list[int]] = ([], [])
    for part in parts:
        for phrases, column in zip(part, columns, strict=True):
            # the number of a new phrase is that of the phrases before it
            column += [numbers.setdefault(phrase, len(numbers)) for phrase in phrases]
    words, keys, nodes = _trie(b"\n".join(numbers))
    source, target = (nodes[np.array(column, dtype=np.int32)] for column in columns)
    # paraphrases of a phrase are on consecutive lines
    starts = np.flatnonzero(np.diff(source, prepend=-1))
    return ParaphraseTable(
        words, keys, source[starts], np.append(starts, len(source)).astype(np.int32), target
    )


def _cached_name() -> str:
    return f"meteor/{metric_file(PARAPHRASES).stat().st_size}-v1.npz"


def _trie(phrases: bytes) -> tuple[dict[str, int], NDArray[np.int64], NDArray[np.int32]]:
    """Return the numbers of the words, the keys of all nodes, and the node of each phrase.

    phrases: one on each line, words separated by blanks.
    """
    # Every phrase is a path from the root. Depth by depth, the distinct pairs of a parent and a
    # word are the nodes; np.unique sorts them, so that `_children` can search them, and tells each
    # phrase its node. Shapes: P phrases of T words in total, Q phrases longer than the depth.
    tokens = phrases.split()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(tokens))}
    ids = np.fromiter(map(numbers.__getitem__, tokens), dtype=np.int64, count=len(tokens))
    gaps = np.frombuffer(phrases, dtype=np.uint8)
    is_first = np.append(True, gaps[(gaps == ord(" ")) | (gaps == ord("\n"))] == ord("\n"))
    starts = np.flatnonzero(is_first)  # (T,) -> (P,)
    sizes = np.diff(starts, append=len(ids))
    node, keys, nodes = np.zeros(len(starts), dtype=np.int64), [], 0
    for depth in range(int(sizes.max())):
        inside = np.flatnonzero(sizes > depth)  # (P,) -> (Q,)
        pairs = node[inside] * len(numbers) + ids[starts[inside] + depth]
        level, ranks = np.unique(pairs, return_inverse=True)  # (nodes of this depth,), (Q,)
        node[inside] = nodes + 1 + ranks
        nodes += len(level)
        keys.append(level)
    words = {word.decode(): number for word, number in numbers.items()}
    return words, np.concatenate(keys), node.astype(np.int32)
