"""Folders that `save_pretrained` of transformers wrote, and names of models in its cache.

Nothing is downloaded, no code of a folder is run, and no pickle is opened but by a2's own reader.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from a2cap.data.errors import ConfigError, InputError
from a2cap.data.files.json_file import read_json
from a2cap.pipeline.captioning.adapted.prompts import prompt_of_kind
from a2cap.pipeline.engine.artifact_names import CAPTIONER

CONFIG = "config.json"
_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_pretrained(path_or_name: Path) -> bool:
    """Report whether a path is a model of transformers, as a folder or by its name on the hub."""
    if path_or_name.exists():
        return (path_or_name / CONFIG).is_file() and not (path_or_name / CAPTIONER[1]).is_file()
    # a path of one folder in another may be a name, unless that folder exists
    return bool(_ON_THE_HUB.fullmatch(str(path_or_name))) and not path_or_name.parent.exists()


def default_prompt(models: Sequence[Path]) -> str | None:
    """Return the default prompt of a model of transformers, None for a captioner of a2."""
    folder = pretrained_folder(models)
    if folder is None:
        return None
    content = read_json(folder / CONFIG)
    kind = content.get("model_type") if isinstance(content, dict) else None
    return prompt_of_kind(str(kind))


def pretrained_folder(models: Sequence[Path]) -> Path | None:
    """Return the folder of a model of transformers, None for captioners that a2 trained.

    Raises InputError for a model that is not in the cache, and for an ensemble with one.
    """
    pretrained = [path for path in models if is_pretrained(path)]
    if not pretrained:
        return None
    if len(models) > 1:
        raise InputError(
            f"an ensemble cannot contain a model of transformers: {str(pretrained[0])!r}; name it "
            "alone"
        )
    [source] = pretrained
    return source if source.exists() else _cached(str(source))


def _cached(name: str) -> Path:
    try:
        # an optional package
        import huggingface_hub
    except ImportError as error:
        raise ConfigError(
            f"neither a folder nor, without transformers, a model: {name!r}; name a directory that "
            '"a2 train" has finished, or run pip install "a2cap[transformers]"'
        ) from error
    try:
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True))
    except (OSError, ValueError) as error:  # errors of the hub are OSErrors
        raise InputError(
            f"neither a folder nor a model in the cache of transformers: {name!r}, and a2 "
            f"downloads none; run hf download {name}, or name a folder"
        ) from error
