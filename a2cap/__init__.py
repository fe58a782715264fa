"""A2 Transformer: attention-aligned image captioning (AAAI 2022), as a library.

>>> import a2cap
>>> captioner = a2cap.load()  # doctest: +SKIP
>>> captioner("dog.jpg").caption  # doctest: +SKIP
'a dog on a lawn'

Importing it loads nothing heavy; a function is imported when it is first used. `a2cap.data`,
`a2cap.extract`, `a2cap.model` and `a2cap.pipeline` contain the implementation, which may change.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from a2cap.data.errors import A2Error
from a2cap.pipeline.runtime.openmp import set_wait_policy

if TYPE_CHECKING:
    from a2cap.adapted import AdaptedCaptioner, adapt
    from a2cap.caption import Caption, Word
    from a2cap.captioner import Captioner, load
    from a2cap.experiments import Evaluation, Training, configure, evaluate, train
    from a2cap.images import extractor, features
    from a2cap.scoring import score

__all__ = [
    "A2Error",
    "AdaptedCaptioner",
    "Caption",
    "Captioner",
    "Evaluation",
    "Training",
    "Word",
    "__version__",
    "adapt",
    "configure",
    "evaluate",
    "extractor",
    "features",
    "load",
    "score",
    "train",
]

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("AdaptedCaptioner", "adapt"), "a2cap.adapted"),
    **dict.fromkeys(("Caption", "Word"), "a2cap.caption"),
    **dict.fromkeys(("Captioner", "load"), "a2cap.captioner"),
    **dict.fromkeys(
        ("Evaluation", "Training", "configure", "evaluate", "train"), "a2cap.experiments"
    ),
    "extractor": "a2cap.images",
    "features": "a2cap.images",
    "score": "a2cap.scoring",
}
"""Function or class -> its module."""


def __getattr__(name: str) -> object:
    """Import a function of the library when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'a2cap' has no attribute {name!r}")
    if "torch" not in sys.modules:  # OpenMP reads it once, when torch is imported
        set_wait_policy(os.environ)
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
