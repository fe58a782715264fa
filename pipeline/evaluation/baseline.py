"""What another evaluation found, to be shown beside one's own figures (`evaluate.baseline`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2cap.data.errors import InputError
from a2cap.data.files.json_file import read_json
from a2cap.pipeline.metrics.word_groups import GroupScore, PairScore, WordScore


@dataclass(frozen=True)
class Baseline:
    """Metric -> value, and group of words -> scores, none where it was evaluated without."""

    metrics: dict[str, float]
    word_groups: dict[str, GroupScore]


def read_baseline(path: Path) -> Baseline:
    """The figures in a metrics.json; InputError where the file is none."""
    content = read_json(path)
    try:
        if not isinstance(content, dict):
            raise TypeError("no object")
        return Baseline(
            metrics={str(name): float(value) for name, value in content["metrics"].items()},
            word_groups={
                str(name): _group(found) for name, found in content.get("word_groups", {}).items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"evaluate.baseline holds no metrics: {str(path)!r}; name a metrics.json"
        ) from error


def _group(found: Mapping[str, Mapping[str, Any]]) -> GroupScore:
    return GroupScore(WordScore(**found["words"]), PairScore(**found["pairs"]))
