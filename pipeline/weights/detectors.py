"""Extractors by name, the bundled and the published ones, and what their files state.

URLs of published checkpoints come from their READMEs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from safetensors import SafetensorError, safe_open

from a2cap.data.errors import A2Error, WeightsError
from a2cap.data.files.cache import cache_folder
from a2cap.data.files.checksum import sha256_of
from a2cap.data.files.paths import require_file
from a2cap.extract.extract_config import (
    BASE_KEY,
    GRID_KEY,
    LITE,
    META_KEY,
    OWN_ENCODER,
    ExtractConfig,
    stated_settings,
)
from a2cap.extract.weights.wheels import wheel_file

NO_WEIGHTS = (
    "no detector weights are named: extract.weights is null; name a file with "
    "--set extract.weights=FILE (of any known layout: docs/guide/extraction.md)"
)

DETECTOR = "detector.safetensors"


@dataclass(frozen=True)
class PublishedDetector:
    """A checkpoint of another project and its URLs, the most reliable first."""

    purpose: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class BundledDetector:
    """A detector, or image encoder, in this package.

    settings: fields of `extract` that its file does not state.
    """

    purpose: str
    path: Path
    sha256: str
    settings: Mapping[str, int | str]


BUNDLED: Mapping[str, BundledDetector] = {
    "scenes": BundledDetector(
        "generated scenes, of `a2 scenes` (docs/scenes-detector.md)",
        Path(str(files("a2cap.extract.weights") / "scenes_detector.safetensors")),
        "742b6cbbe0c21d7f11cdd3966a62dfcf8063b0d67852dc71a2ebb5a590a2ad18",
        {"roi_size": 7, "proposals": 36},
    ),
    "photos": BundledDetector(
        "photographs: image encoder of the bundled captioner (docs/photos.md)",
        Path(str(files("a2cap.pipeline.weights") / "photos_captioner" / "weights.safetensors")),
        "6bfd1d61ba8c798cdfcdd5bb1e13110685fe1584531f9557be614d53ad92c307",
        {},
    ),
}
BUNDLED_SETTINGS = {bundled.path: bundled.settings for bundled in BUNDLED.values()}

_CAFFE, _CAFFE_36 = "resnet101_faster_rcnn_final", "resnet101_faster_rcnn_final_iter_320000"
_AIRSPLAY = "https://nlp.cs.unc.edu/models"  # never http: no digest of the files is known
_MILVLG = "https://awma1-my.sharepoint.com/:u:/g/personal/yuz_l0_tn"
_OLD_HUB = "https://s3.amazonaws.com/models.huggingface.co/bert/unc-nlp"

PUBLISHED: dict[str, PublishedDetector] = {
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
    path = weights_folder(name) / DETECTOR
    return path if path.is_file() else None


def resolve_weights(name: str) -> Path:
    """Return the file that `extract.weights` names: a path, or a bundled or downloaded detector.

    An existing file takes precedence over a detector of that name. Raises WeightsError for a
    published detector that is not downloaded, and for a URL.
    """
    if Path(name).is_file() and name != OWN_ENCODER:  # not the folder of `a2 scenes scenes`
        return Path(name)
    if name == OWN_ENCODER:
        raise WeightsError(
            "weights 'encoder' are known to extract.weights alone, where they are trained; "
            "name their file, encoder.safetensors in a result of train-encoder"
        )
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
    if (file := downloaded_detector(name)) is not None:
        return file
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
    if name is None:
        return {}
    if name == OWN_ENCODER:  # of any network, so that this is a default alone
        return {}
    if name in LITE and not Path(name).is_file():
        return {"boxes": "grid", "grid_backbone": name}
    settings: Mapping[str, int | str] = {}
    try:
        path = resolve_weights(name)
        settings = BUNDLED_SETTINGS.get(path, {})
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
        if network := metadata.get(GRID_KEY, metadata.get(BASE_KEY)):
            return {"boxes": "grid", "grid_backbone": network, **settings}
        return {**stated_settings(json.loads(metadata[META_KEY])), **settings}
    except (A2Error, SafetensorError, OSError, LookupError, TypeError, ValueError):
        return {**settings}  # reported when the weights are loaded


def weights_sha256(path: Path) -> str:
    """Return the sha256 of a weights file; raise WeightsError if it cannot be read."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise WeightsError(
            f"cannot read weights {str(path)!r}: {error.strerror}; correct the path"
        ) from error


def weights_folder(name: str) -> Path:
    """Return the cache folder of a downloaded detector."""
    return cache_folder() / "weights" / name
