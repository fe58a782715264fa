"""Subset of METEOR's paraphrase table for given captions.

The jar spends most of its time reading 5.3 million pairs of phrases before it scores the first
caption. A pair matters only if both phrases occur in the captions; without the others all scores
are equal. The subset for a set of references is cached.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

from a2cap.data.files.cache import read_entry, write_entry
from a2cap.pipeline.metrics.tokenization import pycocoevalcap_folder

_BLOCK = 1 << 22
"""Number of compressed bytes read at once."""

_RUN = re.compile(r"[^\W_]+")

Runs = frozenset[tuple[str, ...]]
"""Runs of letters and digits, alone and with the next run."""


def paraphrases_for(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> bytes:
    """Return the gzipped table for the jar: at least the pairs that can match these captions."""
    sentences = list(chain.from_iterable(references))
    entry = f"paraphrases/{hashlib.sha256(json.dumps(sentences).encode()).hexdigest()}"
    wanted = runs_of(candidates)
    # The candidates are not in its name: most of their words are in the references of any run.
    cached = read_entry(entry)
    if cached is not None:
        head, _, part = cached.partition(b"\n")
        known = frozenset(map(tuple, json.loads(head)))
        if wanted <= known:
            return part
    wanted |= runs_of(sentences)
    table = pycocoevalcap_folder() / "meteor" / "data" / "paraphrase-en.gz"
    part = gzip.compress(b"".join(usable_pairs(table, wanted)), compresslevel=1)
    write_entry(entry, json.dumps(sorted(wanted)).encode() + b"\n" + part)
    return part


def runs_of(captions: Iterable[str]) -> Runs:
    """Return all runs of the captions, in lower case.

    The jar splits off punctuation before it compares words, but never splits a run of letters and
    digits. So a phrase can occur only if its runs do, one after another.
    """
    found: set[tuple[str, ...]] = set()
    for caption in set(captions):
        runs = _RUN.findall(caption.lower())
        found.update(zip(runs, strict=True), pairwise(runs))
    return frozenset(found)


def usable_pairs(table: Path, runs: Runs) -> Iterator[bytes]:
    """Yield the pairs of the table whose phrases have no other runs: probability, phrase, phrase.

    The order of the table is kept, because the jar may break ties by it.
    """
    for lines in _line_blocks(table):
        firsts, seconds = lines[1::3], lines[2::3]
        # Each distinct phrase is split once; a phrase begins many pairs.
        usable = {phrase for phrase in set(firsts) if _occurs(phrase, runs)}
        rows = [row for row, phrase in enumerate(firsts) if phrase in usable]
        others = {phrase for phrase in {seconds[row] for row in rows} if _occurs(phrase, runs)}
        for row in rows:
            if seconds[row] in others:
                yield b"%s\n%s\n%s\n" % (lines[3 * row], firsts[row], seconds[row])


def _occurs(phrase: bytes, runs: Runs) -> bool:
    found = _RUN.findall(phrase.decode(errors="replace").lower())
    return runs.issuperset(zip(found, strict=True)) and runs.issuperset(pairwise(found))


def _line_blocks(table: Path) -> Iterator[list[bytes]]:
    """Yield blocks of lines whose number is a multiple of three."""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
    rest: list[bytes] = [b""]
    with table.open("rb") as file:
        while block := file.read(_BLOCK):
            lines = (rest[-1] + inflate.decompress(block)).split(b"\n")
            lines[:0] = rest[:-1]
            # The last line may go on in the next block.
            whole = (len(lines) - 1) // 3 * 3
            rest = lines[whole:]
            yield lines[:whole]
