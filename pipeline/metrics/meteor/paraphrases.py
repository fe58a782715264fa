"""METEOR's table of 5.3 million English paraphrases, in a form that loads quickly.

The table is a gzipped text that takes seconds to read. On first use it is written into the user's
cache folder as arrays: a trie of the phrases, and the paraphrases of each phrase.
"""

import gzip
import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from a2cap.data.files.cache import cache_folder, write_file
from a2cap.pipeline.metrics.ngrams import Ints
from a2cap.pipeline.metrics.pycocoevalcap import PARAPHRASES, metric_file

logger = logging.getLogger(__name__)

_BLOCK = 1 << 24
"""Bytes of the table in memory at once."""

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

    numbers: word -> its number. keys: (P,) sorted; node p + 1 of the trie has the key
    parent * words + number of its last word, and the root is node 0. sources: (G,) nodes with
    paraphrases, `starts`: (G + 1,) their first rows in targets: (R,).
    """

    numbers: dict[str, int]
    keys: NDArray[np.int64]
    sources: NDArray[np.int32]
    starts: NDArray[np.int32]
    targets: NDArray[np.int32]

    @classmethod
    def load(cls) -> "ParaphraseTable":
        """Load the table from the cache, or read the file and write the cache."""
        path = metric_file(PARAPHRASES)
        name = f"meteor/{path.stat().st_size}-v1.npz"
        # An .npz has a checksum of each array.
        with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile):
            return cls._loaded(cache_folder() / name)
        logger.info("METEOR: preparing the paraphrases, once")
        table = _read(path)
        write_file(name, table._saved())
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
        wanted = node * len(self.numbers) + word
        found = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where((word >= 0) & (self.keys[found] == wanted), found + 1, 0)

    def pairs(self, phrases: Ints, others: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the pairs of a phrase of one list with one of the other, in either order.

        Returns their rows, sources and targets.
        """
        of_first, of_second = (self._mask(nodes) for nodes in (phrases, others))
        groups = np.flatnonzero((of_first | of_second)[self.sources])
        first, sizes = self.starts[groups], np.diff(self.starts)[groups]
        offsets = np.cumsum(sizes) - sizes
        rows = np.repeat(first - offsets, sizes) + np.arange(sizes.sum())
        source, target = np.repeat(self.sources[groups], sizes), self.targets[rows]
        chosen = (of_first[source] & of_second[target]) | (of_second[source] & of_first[target])
        return rows[chosen], source[chosen], target[chosen]

    def _mask(self, nodes: Ints) -> NDArray[np.bool_]:
        mask = np.zeros(len(self.keys) + 1, dtype=np.bool_)
        mask[nodes] = True
        return mask


def _read(path: Path) -> ParaphraseTable:
    """Read the file: a probability, a phrase and its paraphrase on three lines."""
    numbers: dict[bytes, int] = {}
    sources: list[NDArray[np.int32]] = []
    targets: list[NDArray[np.int32]] = []
    for lines in _blocks(path):
        for phrases, found in ((lines[1::3], sources), (lines[2::3], targets)):
            # the number of a new phrase is that of the phrases before it
            ids = [numbers.setdefault(phrase, len(numbers)) for phrase in phrases]
            found.append(np.array(ids, dtype=np.int32))
    words, keys, nodes = _trie(b"\n".join(numbers))
    source, target = (nodes[np.concatenate(parts)] for parts in (sources, targets))
    # paraphrases of a phrase are on consecutive lines
    starts = np.flatnonzero(np.diff(source, prepend=-1))
    return ParaphraseTable(
        words, keys, source[starts], np.append(starts, len(source)).astype(np.int32), target
    )


def _blocks(path: Path) -> Iterator[list[bytes]]:
    """Yield blocks of lines whose number is a multiple of three."""
    with gzip.open(path) as file:
        while block := file.read(_BLOCK):
            lines = (block + file.readline()).split(b"\n")[:-1]
            lines += [file.readline().removesuffix(b"\n") for _ in range(-len(lines) % 3)]
            yield lines


def _trie(phrases: bytes) -> tuple[dict[str, int], NDArray[np.int64], NDArray[np.int32]]:
    """Return the numbers of the words, the keys of all nodes, and the node of each phrase.

    phrases: one on each line, words separated by blanks.
    """
    tokens = phrases.split()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(tokens))}
    ids = np.fromiter(map(numbers.__getitem__, tokens), dtype=np.int64, count=len(tokens))
    gaps = np.frombuffer(phrases, dtype=np.uint8)
    is_first = np.append(True, gaps[(gaps == ord(" ")) | (gaps == ord("\n"))] == ord("\n"))
    starts = np.flatnonzero(is_first)
    sizes = np.diff(starts, append=len(ids))
    node, keys, nodes = np.zeros(len(starts), dtype=np.int64), [], 0
    for place in range(int(sizes.max())):
        inside = np.flatnonzero(sizes > place)
        wanted = node[inside] * len(numbers) + ids[starts[inside] + place]
        level, ranks = np.unique(wanted, return_inverse=True)
        node[inside] = nodes + 1 + ranks
        nodes += len(level)
        keys.append(level)
    words = {word.decode(): number for word, number in numbers.items()}
    return words, np.concatenate(keys), node.astype(np.int32)
