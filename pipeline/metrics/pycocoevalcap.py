"""Files of the installed pycocoevalcap: jars, METEOR's tables and COCO's captions."""

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

from a2cap.data.errors import InputError

TOKENIZER = "tokenizer/stanford-corenlp-3.4.1.jar"
METEOR = "meteor/meteor-1.5.jar"
PARAPHRASES = "meteor/data/paraphrase-en.gz"
CAPTIONS = "spice/spice-1.0.jar"


def pycocoevalcap_folder() -> Path:
    """Return the folder of the package; raise InputError if it is not installed."""
    spec = find_spec("pycocoevalcap")
    if spec is None or not spec.submodule_search_locations:
        raise InputError('pycocoevalcap is not installed; run "pip install pycocoevalcap"')
    return Path(next(iter(spec.submodule_search_locations))).absolute()


def metric_file(name: str) -> Path:
    """Return a file of the package; raise InputError if it is missing."""
    path = pycocoevalcap_folder() / name
    if not path.is_file():
        raise InputError(
            f"pycocoevalcap lacks {str(path)!r}; "
            'run "pip install --force-reinstall --no-deps pycocoevalcap"'
        )
    return path


def coco_captions(part: str) -> dict[int, list[str]]:
    """Return the captions of COCO 2014 by image; part: train or val."""
    captions: dict[int, list[str]] = {}
    with zipfile.ZipFile(metric_file(CAPTIONS)) as archive:
        document = json.loads(archive.read(f"coco/annotations/captions_{part}2014.json"))
    for item in document["annotations"]:
        captions.setdefault(item["image_id"], []).append(item["caption"])
    return captions


def require_metric_files() -> str:
    """Return the folder; raise InputError if captions cannot be tokenized or scored."""
    for name in (TOKENIZER, METEOR, PARAPHRASES):
        metric_file(name)
    return str(pycocoevalcap_folder())
