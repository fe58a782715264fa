"""The metrics that captioning papers report: BLEU, METEOR, ROUGE-L and CIDEr.

Values are those of pycocoevalcap 1.2 (`COCOEvalCap`), whose scorers and jars do the work. Only how
they are run differs: captions go to the PTB tokeniser on its standard input, not in a file beside
the installed package, METEOR is told where its paraphrases lie (it cannot find them below a folder
with a space in its name), nothing is printed, and a metric that fails does not sink the others.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from a2.data.errors import InputError
from a2.pipeline.java import JavaError, java_process, run_java

logger = logging.getLogger(__name__)

METRICS = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4", "METEOR", "ROUGE_L", "CIDEr", "SPICE")
"""Every metric of `metrics.json`, in the order in which tables show them."""

_NO_SPICE = "this version of a2 does not compute SPICE; score captions.json with pycocoevalcap"

# What COCOEvalCap drops after tokenisation. Brackets are lower-cased by then, so -lrb- stays, as it
# does there.
_PUNCTUATION = frozenset(
    (*("''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-"), *".?!,:-;", "--", "...")
)

# The tokeniser starts a new line at each of these, and a caption is one line.
_LINE_BREAKS = re.compile("[\n\r\v\f\u2028\u2029]")

_METEOR_HEAP = "-Xmx2G"

Tokens = Mapping[str, list[str]]
"""Sentences of PTB tokens joined by spaces, per image id."""

Measured = dict[str, tuple[float, Sequence[float]]]
"""Per metric the value over all pictures, and one per picture in the order of the candidates."""


@dataclass(frozen=True)
class Scores:
    """What was measured, over all pictures and for each.

    metrics: metric -> value, in [0, 1] but for CIDEr, which may exceed 1.
    per_picture: image id -> metric -> value.
    not_run: metric -> why it has no value.
    """

    metrics: dict[str, float]
    per_picture: dict[str, dict[str, float]]
    not_run: dict[str, str]


def tokenize(captions: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """PTB tokens of each caption, lower-cased, without punctuation, joined by single spaces.

    Raises JavaError where no JVM can be run.
    """
    sentences = [sentence for group in captions.values() for sentence in group]
    if not sentences:
        return {image_id: [] for image_id in captions}
    lines = iter(_ptb_lines(sentences))
    return {image_id: list(islice(lines, len(group))) for image_id, group in captions.items()}


def _ptb_lines(sentences: Sequence[str]) -> list[str]:
    jar = _pycocoevalcap() / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    output = run_java(
        ["-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"],
        text="".join(_LINE_BREAKS.sub(" ", sentence) + "\n" for sentence in sentences),
        purpose="tokenisation",
    )
    lines = output.split("\n")[:-1]
    if len(lines) != len(sentences):
        raise JavaError(
            f"the tokeniser answered {len(lines):,} lines for {len(sentences):,} captions; "
            "remove control characters from the captions"
        )
    return [_without_punctuation(line) for line in lines]


def _without_punctuation(line: str) -> str:
    # Only at blanks: a token may hold a no-break space ("1 1/2").
    return " ".join(token for token in line.rstrip().split(" ") if token not in _PUNCTUATION)


def _pycocoevalcap() -> Path:
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise JavaError('no metrics: pycocoevalcap is missing; run "pip install pycocoevalcap"')
    return Path(next(iter(spec.submodule_search_locations))).absolute()


def score(
    candidates: Mapping[str, str | list[str]], references: Mapping[str, Sequence[str]]
) -> Scores:
    """Every metric that can run here, of one candidate per picture against its references.

    candidates, references: PTB tokens, as `tokenize` gives them, of the same pictures.
    """
    hypotheses, targets = _paired(candidates, references)
    metrics: dict[str, float] = {}
    per_picture: dict[str, dict[str, float]] = {image_id: {} for image_id in hypotheses}
    not_run: dict[str, str] = {}
    for names, measure in _MEASURES:
        try:
            measured = measure(hypotheses, targets)
        except Exception as error:  # whatever fails, the other metrics are still worth having
            logger.warning("%s could not run: %s", ", ".join(names), error)
            not_run |= dict.fromkeys(names, f"{error}" or type(error).__name__)
            continue
        for name, (overall, values) in measured.items():
            metrics[name] = float(overall)
            for image_id, value in zip(hypotheses, values, strict=True):
                per_picture[image_id][name] = float(value)
    return Scores(metrics, per_picture, not_run | {"SPICE": _NO_SPICE})


def cider(
    candidates: Mapping[str, str | list[str]], references: Mapping[str, Sequence[str]]
) -> float:
    """CIDEr alone, which needs no JVM once both are PTB tokens: for validation during training.

    Document frequencies are those of `references`, one document per picture, as in `COCOEvalCap`.
    """
    return float(_cider(*_paired(candidates, references))["CIDEr"][0])


def _paired(
    candidates: Mapping[str, str | list[str]], references: Mapping[str, Sequence[str]]
) -> tuple[Tokens, Tokens]:
    """Both sides as lists over the same pictures in the same order."""
    if not candidates:
        raise InputError("nothing to score: 0 captions; caption at least one picture")
    if candidates.keys() != references.keys():
        odd = sorted(candidates.keys() ^ references.keys())
        raise InputError(
            f"captions and references are of different pictures: {odd[0]!r} and {len(odd) - 1} more"
            " are only in one; hand in both for the same pictures"
        )
    hypotheses = {k: [v] if isinstance(v, str) else list(v) for k, v in candidates.items()}
    targets = {image_id: list(references[image_id]) for image_id in candidates}
    for image_id in candidates:
        if len(hypotheses[image_id]) != 1 or not targets[image_id]:
            raise InputError(
                f"image {image_id!r} has {len(hypotheses[image_id])} captions and "
                f"{len(targets[image_id])} references; score one against at least one"
            )
    return hypotheses, targets


def _bleu(candidates: Tokens, references: Tokens) -> Measured:
    from pycocoevalcap.bleu.bleu import Bleu

    overall, values = Bleu(4).compute_score(references, candidates, verbose=0)
    return {f"Bleu_{n + 1}": (overall[n], values[n]) for n in range(4)}


def _rouge(candidates: Tokens, references: Tokens) -> Measured:
    from pycocoevalcap.rouge.rouge import Rouge

    return {"ROUGE_L": Rouge().compute_score(references, candidates)}


def _cider(candidates: Tokens, references: Tokens) -> Measured:
    from pycocoevalcap.cider.cider import Cider

    return {"CIDEr": Cider().compute_score(references, candidates)}


def _meteor(candidates: Tokens, references: Tokens) -> Measured:
    """METEOR 1.5 by its jar's line protocol: statistics per picture, then one evaluation of all."""
    folder = _pycocoevalcap() / "meteor"
    arguments = [_METEOR_HEAP, "-jar", str(folder / "meteor-1.5.jar"), "-", "-", "-stdio"]
    arguments += ["-l", "en", "-norm", "-a", str(folder / "data" / "paraphrase-en.gz")]
    with java_process(arguments, purpose="METEOR") as java:
        statistics = []
        for image_id, (candidate,) in candidates.items():
            java.send(_meteor_question(candidate, references[image_id]))
            statistics.append(_meteor_statistics(java.receive(), image_id=image_id))
        java.send(" ||| ".join(["EVAL", *statistics]))
        values = [float(java.receive()) for _ in candidates]
        return {"METEOR": (float(java.receive()), values)}


def _meteor_question(candidate: str, references: Sequence[str]) -> str:
    # ||| separates fields. The double blank is pycocoevalcap's, whose values these must equal.
    plain = candidate.replace("|||", "").replace("  ", " ")
    question = ["SCORE", *(r.replace("|||", "") for r in references), plain]
    return _LINE_BREAKS.sub(" ", " ||| ".join(question))


def _meteor_statistics(line: str, *, image_id: str) -> str:
    if not re.fullmatch(r"[-\d.E ]+", line):
        raise JavaError(
            f"METEOR cannot score image {image_id!r}: {line!r}; check its caption and references"
        )
    return line


_MEASURES: tuple[tuple[tuple[str, ...], Callable[[Tokens, Tokens], Measured]], ...] = (
    (METRICS[:4], _bleu),
    (("METEOR",), _meteor),
    (("ROUGE_L",), _rouge),
    (("CIDEr",), _cider),
)
