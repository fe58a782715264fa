"""A2 Transformer: attention-aligned image captioning (AAAI 2022), as a library.

>>> import a2cap
>>> captioner = a2cap.load("artifacts/demo/train-xe/0123456789ab")  # doctest: +SKIP
>>> captioner("dog.jpg").caption  # doctest: +SKIP
'a dog on a lawn'

Importing it loads nothing heavy; each function imports what it needs. `a2cap.data`,
`a2cap.extract`, `a2cap.model` and `a2cap.pipeline` contain the implementation, which may change.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.data.errors import A2Error, InputError

if TYPE_CHECKING:
    from a2cap.captioner import Captioner
    from a2cap.data.config import Tokenizer
    from a2cap.data.features.store import FeatureStore
    from a2cap.images import RegionExtractor
    from a2cap.pipeline.metrics.score import Scores

__all__ = ["A2Error", "__version__", "extractor", "features", "load", "score"]

__version__ = "0.1.0"


def load(
    model: str | Path | Sequence[str | Path], *, device: str = "auto", **decoding: object
) -> "Captioner":
    """Load a trained captioner, or several directories as an ensemble.

    model: a directory that `a2 train` wrote, a folder above it, a name, the start of a key or
    "latest" of `a2 runs`, or "scenes", the bundled captioner of generated scenes. device: auto,
    cpu, cuda or cuda:N. decoding: fields of the section `evaluate`, such as beam_size=3. Raises
    A2Error for an unusable directory or field.

    >>> captioner = load("artifacts/demo/train-xe/0123456789ab", beam_size=3)  # doctest: +SKIP
    """
    from a2cap.captioner import Captioner
    from a2cap.pipeline.runs import find_trainings

    models = [model] if isinstance(model, str | Path) else list(model)
    return Captioner(find_trainings(map(Path, models)), device=device, **decoding)


def extractor(
    weights: str | Path, *, device: str = "auto", **settings: object
) -> "RegionExtractor":
    """Load an extractor of region features.

    weights: a weights file, or the name of a bundled or downloaded detector, such as "scenes".
    settings: other fields of the section `extract`, such as max_regions=36. Raises A2Error for
    unusable weights or settings.

    >>> extract = extractor("scenes")  # doctest: +SKIP
    >>> extract("house.png").boxes.shape  # doctest: +SKIP
    (11, 4)
    """
    from a2cap.images import RegionExtractor

    return RegionExtractor(str(weights), device=device, **settings)


def features(path: str | Path) -> "FeatureStore":
    """Open the store of `a2 extract`: a mapping of image id to Regions; StoreError if it is none.

    >>> store = features("artifacts/extract/0123456789ab/features.lmdb")  # doctest: +SKIP
    >>> store["000000000042"].features.shape  # doctest: +SKIP
    (36, 2048)
    """
    from a2cap.data.features.store import FeatureStore

    return FeatureStore(Path(path))


def score(
    captions: Mapping[str, str] | Sequence[str],
    references: Mapping[str, Sequence[str]] | Sequence[Sequence[str]],
    *,
    spice: bool = False,
    tokenizer: "Tokenizer" = "karpathy",
) -> "Scores":
    """Score captions against their references; metrics, 95 % intervals, and values of each image.

    captions and references: by image id, or in the same order. spice: compute SPICE too, which
    needs `a2 weights fetch spice` once. Values equal those of pycocoevalcap, over PTB tokens.
    tokenizer: unicode for captions of any language, without METEOR and SPICE, which read English.
    Raises InputError if the images differ, JavaError if a metric cannot run.

    >>> found = score(["a red house"], [["a red house", "a house on a hill"]])  # doctest: +SKIP
    >>> found.metrics["Bleu_4"], found.confidence["Bleu_4"]  # doctest: +SKIP
    """
    from a2cap.pipeline.metrics.score import NOT_REQUESTED
    from a2cap.pipeline.metrics.score import score as score_tokens
    from a2cap.pipeline.metrics.tokenization import tokenize

    if not isinstance(captions, Mapping) and not isinstance(references, Mapping):
        if len(captions) != len(references):
            raise InputError(
                f"captions and references differ in number: {len(captions)} and "
                f"{len(references)}; give one list of references per caption"
            )
        captions = {str(number): caption for number, caption in enumerate(captions)}
        references = {str(number): texts for number, texts in enumerate(references)}
    if not isinstance(captions, Mapping) or not isinstance(references, Mapping):
        raise InputError(
            "captions and references are of different kinds: a mapping and a sequence; give two "
            "mappings by image id, or two sequences"
        )
    for image_id, texts in references.items():
        # a text is a sequence of texts too, of its letters
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"references of image {image_id!r} are not a list of texts: {texts!r}; give a list "
                "of one or more texts per caption"
            )
    for image_id, caption in captions.items():
        if not isinstance(caption, str):
            raise InputError(
                f"caption of image {image_id!r} is not a text: {caption!r}; give a text"
            )
    candidates = tokenize({name: [caption] for name, caption in captions.items()}, tokenizer)
    tokens = tokenize(references, tokenizer)
    no_spice = None if spice else NOT_REQUESTED
    return score_tokens(candidates, tokens, no_spice=no_spice, tokenizer=tokenizer)
