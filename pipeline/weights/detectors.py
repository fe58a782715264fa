"""Detectors by name: one that comes with this package, and the published ones.

Of the published is known where people said they lie. No README gives a digest, so that of the first
file that came is recorded and later ones must have it. What is fetched is read as
`a2cap.extract.weights.load` reads any file, with nothing in it run, and kept as canonical
safetensors; the
file itself is not needed afterwards.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import cast

from a2cap.data.errors import A2Error, WeightsError
from a2cap.data.files.cache import cache_folder
from a2cap.data.files.json_file import read_json, write_json
from a2cap.data.files.paths import named_file
from a2cap.extract.config import CALIBRATED_RANDOM, ExtractConfig
from a2cap.pipeline.weights.download import DownloadError, download

logger = logging.getLogger(__name__)

NO_WEIGHTS = (
    "no detector weights are named: extract.weights is null; name a file with "
    '--set extract.weights=FILE (of any known layout: README, "Your own COCO"), or, for a smoke '
    "run whose features mean nothing, "
    "--set extract.weights=calibrated-random"
)

DETECTOR, RECORD = "detector.safetensors", "record.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a published file is, and every address that READMEs name for it, the likeliest first."""

    purpose: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Shipped:
    """A detector that comes with this package. file: within `a2cap.extract`; sha256: of its
    bytes."""

    purpose: str
    file: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(str(files("a2cap.extract.weights") / self.file))


SHIPPED: Mapping[str, Shipped] = {
    "scenes": Shipped(
        "generated scenes, of `a2 scenes` (docs/scenes-detector.md)",
        "scenes_detector.safetensors",
        "8ebb1b00e53e4570bb2eeeefdb564b593601775956a7b067c391c03de39c9f6f",
    ),
}
"""Name -> what it is."""

_AIRSPLAY = ("http://nlp.cs.unc.edu/models", "https://nlp.cs.unc.edu/models")
_MILVLG = "https://awma1-my.sharepoint.com/:u:/g/personal/yuz_l0_tn"
_OLD_HUB = "https://s3.amazonaws.com/models.huggingface.co/bert/unc-nlp"

CHECKPOINTS: Mapping[str, Checkpoint] = {
    "caffe-36": Checkpoint(
        "bottom-up attention, caffe, for 36 regions (resnet101_faster_rcnn_final_iter_320000)",
        (
            "https://storage.googleapis.com/up-down-attention/"
            "resnet101_faster_rcnn_final_iter_320000.caffemodel",
            "https://storage.googleapis.com/bottom-up-attention/"
            "resnet101_faster_rcnn_final_iter_320000.caffemodel",
            "https://www.dropbox.com/s/2h4hmgcvpaewizu/"
            "resnet101_faster_rcnn_final_iter_320000.caffemodel?dl=1",
            "https://www.dropbox.com/s/nu6jwhc88ujbw1v/"
            "resnet101_faster_rcnn_final_iter_320000.caffemodel?dl=1",
        ),
    ),
    "caffe-10-100": Checkpoint(
        "bottom-up attention, caffe, for 10 to 100 regions (resnet101_faster_rcnn_final)",
        (
            "https://storage.googleapis.com/up-down-attention/"
            "resnet101_faster_rcnn_final.caffemodel",
            "https://www.dropbox.com/s/5xethd2nxa8qrnq/resnet101_faster_rcnn_final.caffemodel?dl=1",
        ),
    ),
    "airsplay": Checkpoint(
        "py-bottom-up-attention, 36 regions, without attributes",
        tuple(f"{host}/faster_rcnn_from_caffe.pkl" for host in _AIRSPLAY),
    ),
    "airsplay-attributes": Checkpoint(
        "py-bottom-up-attention, 36 regions, with attributes",
        tuple(f"{host}/faster_rcnn_from_caffe_attr.pkl" for host in _AIRSPLAY),
    ),
    "airsplay-10-100": Checkpoint(
        "py-bottom-up-attention, 10 to 100 regions, with attributes",
        tuple(f"{host}/faster_rcnn_from_caffe_attr_original.pkl" for host in _AIRSPLAY),
    ),
    "hugging-face": Checkpoint(
        "unc-nlp/frcnn-vg-finetuned of LXMERT's demo",
        (
            "https://huggingface.co/unc-nlp/frcnn-vg-finetuned/resolve/main/pytorch_model.bin",
            "https://cdn.huggingface.co/unc-nlp/frcnn-vg-finetuned/pytorch_model.bin",
            f"{_OLD_HUB}/frcnn-vg-finetuned/pytorch_model.bin",
        ),
    ),
    "milvlg-36": Checkpoint(
        "bottom-up-attention.pytorch, 36 regions",
        (f"{_MILVLG}/EUKhQ3hSRv9JrrW64qpNLSIBGoOjEGCkF8zvgBP9gKax-w?download=1",),
    ),
    "milvlg-10-100": Checkpoint(
        "bottom-up-attention.pytorch, 10 to 100 regions",
        (f"{_MILVLG}/EaXvCC3WjtlLvvEfLr3oa8UBLA21tcLh4L8YLbYXl6jgjg?download=1",),
    ),
    "detectron2-coco": Checkpoint(
        "detectron2 model zoo, R101-C4 on COCO's 80 classes",
        (
            "https://dl.fbaipublicfiles.com/detectron2/COCO-Detection/faster_rcnn_R_101_C4_3x/"
            "138204752/model_final_298dad.pkl",
        ),
    ),
}
"""Name -> what it is. None of these addresses could be tried where this was written."""


def kept_detector(name: str) -> Path | None:
    """The canonical weights of a checkpoint that was fetched, None where it was not."""
    path = _folder(name) / DETECTOR
    return path if path.is_file() else None


def fetch_checkpoint(name: str, *, pause: float = 1.0) -> Path:
    """The canonical weights of a published checkpoint, fetched from the first address that has it.

    pause: seconds before an address is tried again. Raises DownloadError, which says what every
    address answered, where none of them gives the file.
    """
    kept = kept_detector(name)
    if kept is not None:
        return kept
    failures = []
    for number, address in enumerate(CHECKPOINTS[name].addresses):
        file = _folder(name) / f"from address {number}"
        try:
            download(address, file, pause=pause)
            return _keep(name, file, address)
        except A2Error as error:
            logger.warning("%s", error)
            failures.append(str(error))
            file.unlink(missing_ok=True)
    raise DownloadError(
        f"no address gives {name!r}: {'; '.join(failures)}; import a file that somebody still has "
        'with "a2 weights import FILE"'
    )


def import_detector(path: Path) -> Path:
    """Keeps any known layout as canonical weights; WeightsError where it is of none.

    Returns where they are kept: equal files have one place.
    """
    target = _folder("imported") / f"{sha256_of(path)[:12]}.safetensors"
    if not target.is_file():
        _convert(path, target)
    return target


def resolve_weights(named: str) -> Path:
    """The file that `extract.weights` means: a path, or the name of a shipped or fetched detector.

    WeightsError for a checkpoint that has not been fetched.
    """
    if named in SHIPPED and not Path(named).exists():
        return SHIPPED[named].path
    if named not in CHECKPOINTS or Path(named).exists():
        return Path(named)
    kept = kept_detector(named)
    if kept is None:
        raise WeightsError(
            f'weights {named!r} have not been fetched; run "a2 weights fetch {named}"'
        )
    return kept


def sha256_of(path: Path) -> str:
    """sha256 of a file, read in pieces; WeightsError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise WeightsError(
            f"cannot read weights {str(path)!r}: {error.strerror}; correct the path"
        ) from error


def _folder(name: str) -> Path:
    return cache_folder() / "weights" / name


def _keep(name: str, file: Path, address: str) -> Path:
    """Checks a fetched file against what came first under that name, and makes it canonical."""
    target, record = _folder(name) / DETECTOR, _folder(name) / RECORD
    found = {"address": address, "size": file.stat().st_size, "sha256": sha256_of(file)}
    if record.is_file():
        first = cast("dict[str, object]", read_json(record))
        if first["sha256"] != found["sha256"]:
            raise DownloadError(
                f"{address} gives another file than at first: sha256 {found['sha256']}, not "
                f"{first['sha256']}; if it was replaced on purpose, remove {str(record)!r}"
            )
    _convert(file, target)
    write_json(record, found)
    file.unlink()
    return target


def _convert(file: Path, target: Path) -> None:
    from a2cap.extract.weights.load import load_detector, save_detector

    detector = load_detector(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_detector(detector, target)


def weights_file(config: ExtractConfig) -> Path | None:
    """The file of the detector's weights, None for calibrated-random ones.

    They are named by a path or by the name of a fetched checkpoint. WeightsError where none are
    named or the checkpoint is not there, InputError where the file is not.
    """
    if config.weights is None:
        raise WeightsError(NO_WEIGHTS)
    if config.weights == CALIBRATED_RANDOM:
        return None
    return named_file(resolve_weights(config.weights), "extract.weights")
