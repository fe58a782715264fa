"""Tokens that the metrics compare: PTB, by the tokeniser of pycocoevalcap, or Unicode words.

Captions are sent on its standard input; pycocoevalcap writes a file into the installed package. It
breaks words of many scripts, so captions of other languages can be compared as Unicode words.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from a2cap.data.captions.unicode_words import unicode_words
from a2cap.data.config import TOKENIZERS, Tokenizer
from a2cap.data.errors import InputError
from a2cap.data.files.cache import read_entry, write_entry
from a2cap.pipeline.metrics.java import JavaError, run_java

# COCOEvalCap removes these after tokenisation. Brackets are lower-case by then, so -lrb- stays.
_PUNCTUATION = frozenset(
    (*("''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-"), *".?!,:-;", "--", "...")
)

LINE_BREAKS = re.compile("[\n\r\v\f\u2028\u2029]")
"""Line separators of the tokeniser; a caption must be one line."""

_HEAP = "512M"
_TOKENISER = "tokenizer/stanford-corenlp-3.4.1.jar"
_FILES = (_TOKENISER, "meteor/meteor-1.5.jar", "meteor/data/paraphrase-en.gz")


def metric_tokens(tokenizer: Tokenizer) -> str:
    """Return the name of the tokens that the metrics compare."""
    if tokenizer not in TOKENIZERS:
        raise InputError(f"unknown tokenizer: {tokenizer!r}; use one of {', '.join(TOKENIZERS)}")
    return "Unicode words" if tokenizer == "unicode" else "PTB"


def tokenize(
    captions: Mapping[str, Sequence[str]], tokenizer: Tokenizer = "karpathy"
) -> dict[str, list[str]]:
    """Return the tokens of each caption, lower-case, without punctuation, joined by spaces.

    tokenizer: Unicode words for unicode, else PTB tokens. Raises JavaError if no JVM can be run.
    """
    if metric_tokens(tokenizer) != "PTB":
        return {
            name: [" ".join(unicode_words(s)) for s in group] for name, group in captions.items()
        }
    sentences = [sentence for group in captions.values() for sentence in group]
    if not sentences:
        return {image_id: [] for image_id in captions}
    lines = iter(_ptb_lines(sentences))
    return {image_id: list(islice(lines, len(group))) for image_id, group in captions.items()}


def tokenize_references(
    captions: Mapping[str, Sequence[str]], tokenizer: Tokenizer = "karpathy"
) -> dict[str, list[str]]:
    """Return `tokenize(…)`, PTB tokens from the cache if exactly these captions are in it."""
    if metric_tokens(tokenizer) != "PTB":
        return tokenize(captions, tokenizer)
    content = json.dumps(list(captions.items()), ensure_ascii=False).encode()
    entry = f"tokens/{hashlib.sha256(content).hexdigest()}"
    cached = read_entry(entry)
    if cached is not None:
        return dict(json.loads(cached))
    tokens = tokenize(captions)
    write_entry(entry, json.dumps(list(tokens.items()), ensure_ascii=False).encode())
    return tokens


def _ptb_lines(sentences: Sequence[str]) -> list[str]:
    jar = pycocoevalcap_folder() / _TOKENISER
    arguments = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", str(jar)]
    arguments += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    output = run_java(
        arguments,
        heap=_HEAP,
        text="".join(LINE_BREAKS.sub(" ", sentence) + "\n" for sentence in sentences),
        purpose="tokenisation",
    )
    lines = output.split("\n")[:-1]
    if len(lines) != len(sentences):
        raise JavaError(
            f"the tokeniser returned {len(lines):,} lines for {len(sentences):,} captions; "
            "remove control characters from the captions"
        )
    return [_without_punctuation(line) for line in lines]


def _without_punctuation(line: str) -> str:
    # Split only at blanks: a token may contain a no-break space ("1 1/2").
    return " ".join(token for token in line.rstrip().split(" ") if token not in _PUNCTUATION)


def require_metric_files() -> Path:
    """Return the folder of the jars; raise JavaError if tokenisation or METEOR lacks a file."""
    folder = pycocoevalcap_folder()
    for name in _FILES:
        if not (folder / name).is_file():
            raise JavaError(
                f"pycocoevalcap lacks {str(folder / name)!r}; "
                'run "pip install --force-reinstall --no-deps pycocoevalcap"'
            )
    return folder


def pycocoevalcap_folder() -> Path:
    """Return the folder of the jars; raise JavaError if pycocoevalcap is not installed."""
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise JavaError('pycocoevalcap is not installed; run "pip install pycocoevalcap"')
    return Path(next(iter(spec.submodule_search_locations))).absolute()
