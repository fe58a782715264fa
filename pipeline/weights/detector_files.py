"""Files of detectors: download, import, description.

No README of a published checkpoint states a digest, so the sha256 of the first download is recorded
and later downloads must match it. A download is converted to canonical safetensors without running
any code in it, and is then deleted.
"""

import logging
from pathlib import Path
from typing import cast

from a2cap.data.errors import A2Error
from a2cap.data.files.json_file import read_json, write_json
from a2cap.extract.weights.load import load_detector, save_detector
from a2cap.pipeline.weights.detectors import (
    BUNDLED_SETTINGS,
    DETECTOR,
    PUBLISHED,
    downloaded_detector,
    resolve_weights,
    settings_of_weights,
    weights_folder,
    weights_sha256,
)
from a2cap.pipeline.weights.download import DownloadError, download

logger = logging.getLogger(__name__)

_RECORD = "record.json"


def download_detector(name: str) -> Path:
    """Download a published detector from its first working URL and return its canonical weights.

    Raises DownloadError, with the answer of every URL, when none of them works.
    """
    weights = downloaded_detector(name)
    if weights is not None:
        return weights
    failures = []
    for number, url in enumerate(PUBLISHED[name].urls):
        # a dead link may answer with a web page, which must not pass for the next URL's file
        file = weights_folder(name) / f"download from URL {number}"
        try:
            download(url, file)
            return _keep(name, file, url)
        except A2Error as error:
            logger.warning("%s", error)
            failures.append(str(error))
            file.unlink(missing_ok=True)
    raise DownloadError(
        f"no URL of {name!r} works: {'; '.join(failures)}; find a copy elsewhere and import it "
        'with "a2 weights import FILE"'
    )


def import_detector(path: Path) -> Path:
    """Convert a weights file and return the canonical file; WeightsError for an unknown layout."""
    # named by content, so that a copy under another name is not converted again
    target = weights_folder("imported") / f"{weights_sha256(path)[:12]}.safetensors"
    if not target.is_file():
        _convert(path, target)
    return target


def describe_weights(name: str) -> dict[str, str]:
    """Return the properties of what `extract.weights` names: a detector, or an image encoder.

    Raises WeightsError for an unknown layout.
    """
    weights, settings = resolve_weights(name), settings_of_weights(name)
    if settings.get("boxes") == "grid":
        encoder = {"file": str(weights), "sha256": weights_sha256(weights)}
        return encoder | {field.replace("_", " "): str(value) for field, value in settings.items()}
    detector = load_detector(weights)
    architecture, meta = detector.architecture, detector.meta
    attributes = f"{architecture.attributes:,}" if architecture.attributes else "none"
    conventions = meta.model_dump(mode="json", exclude={"origin", "anchors"})
    conventions |= BUNDLED_SETTINGS.get(weights, {})
    return {
        "file": str(weights),
        "sha256": weights_sha256(weights),
        "origin": meta.origin,
        "network": f"ResNet-{architecture.depth}, {architecture.feature_width:,} per region",
        "classes": f"{architecture.classes:,}",
        "attributes": attributes,
        "anchors": str(len(meta.anchors)),
        **{name.replace("_", " "): str(value) for name, value in conventions.items()},
    }


def _keep(name: str, file: Path, url: str) -> Path:
    """Check a download against the recorded sha256 and convert it to canonical weights."""
    target, record = weights_folder(name) / DETECTOR, weights_folder(name) / _RECORD
    entry = {"address": url, "size": file.stat().st_size, "sha256": weights_sha256(file)}
    if record.is_file():  # trust on first use: no README states a digest
        first = cast("dict[str, object]", read_json(record))
        if first["sha256"] != entry["sha256"]:
            raise DownloadError(
                f"the file at {url} has changed: sha256 {entry['sha256']}, at the first download "
                f"{first['sha256']}; if it was replaced on purpose, remove {str(record)!r}"
            )
    _convert(file, target)
    write_json(record, entry)
    file.unlink()  # canonical weights are enough, and the download has hundreds of MB
    return target


def _convert(file: Path, target: Path) -> None:
    detector = load_detector(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_detector(detector, target)
