"""Detector weights on disk: canonical safetensors, and public files converted to them.

Canonical tensors are defined in `a2cap.extract.weights.checkpoint_layouts`; their `DetectorMeta` is
JSON in the file's metadata. Sizes are read from the tensors' shapes, the format from the first
bytes.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.data.files.atomic import replacing
from a2cap.data.files.paths import did_you_mean
from a2cap.data.files.pickles import OLD_TORCH
from a2cap.data.files.tensors import save_tensors, skip_init
from a2cap.extract.detector.conventions import DetectorMeta
from a2cap.extract.detector.detector import Detector
from a2cap.extract.detector.resnet import BLOCKS, Architecture
from a2cap.extract.extract_config import META_KEY
from a2cap.extract.weights.caffemodel import load_caffemodel
from a2cap.extract.weights.checkpoint_layouts import PREDICTOR, make_canonical
from a2cap.extract.weights.pickles import load_pickle
from a2cap.extract.weights.torch_files import is_safetensors, load_safetensors, load_torch_file
from a2cap.extract.weights.values import check_values


@dataclass(frozen=True)
class _Format:
    """A public file format: its name in messages, first bytes, and loader."""

    name: str
    starts: tuple[bytes, ...]
    load: Callable[[Path], dict[str, Tensor]]


_FORMATS = (
    _Format("a .pth or .bin of torch", (b"PK\x03\x04", OLD_TORCH), load_torch_file),
    _Format("a .pkl of airsplay or detectron2", (b"\x80",), load_pickle),
    # field 1 of the protocol buffer, the network's name, or field 100, its first layer
    _Format("a .caffemodel", (b"\x0a", b"\xa2\x06"), load_caffemodel),
)
_BLOCK = re.compile(r"(?:backbone|roi_heads)\.res(\d)\.\d+\.conv1\.weight")
_WEB_PAGE = (b"<!doctype", b"<html", b"<?xml")
_WRITE_AGAIN = "write them with a2cap.extract.weights.load.save_detector"


def load_detector(path: Path) -> Detector:
    """Load a detector from a weights file of any known layout, on the CPU, ready for inference.

    Raises WeightsError where the file is missing, of unknown layout, unsafe or damaged, states no
    meta, or where tensors are missing, unknown, or hold numbers that cannot be right.
    """
    if not path.is_file():
        raise WeightsError(
            f"no detector weights at {str(path)!r}; correct extract.weights{did_you_mean(path)}"
        )
    try:
        if is_safetensors(path):
            tensors, meta = _load_canonical(path)
        else:
            stored = load_public(path)
            check_values(stored, name=path.name)
            tensors, meta = make_canonical(stored, name=path.name)
        check_values(tensors, name=path.name)
        architecture = architecture_of(tensors, name=path.name)
        return assemble_detector(tensors, architecture=architecture, meta=meta, name=path.name)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:  # of shapes nobody expects
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise WeightsError(
            f"weights {path.name!r} have tensors of impossible shapes: {reason}; "
            "name a complete file of a known layout"
        ) from error


def save_detector(detector: Detector, path: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write canonical safetensors atomically; equal detectors give equal bytes.

    dtype: of matrices and filters, float16 for half the size; `load_detector` gives float32.
    Raises WeightsError where a weight is too large for it.
    """
    # One metadata entry only: the library writes several in an order of its own.
    meta = {META_KEY: detector.meta.model_dump_json()}
    tensors = detector.state_dict()
    # Vectors stay float32: the variances of pixels exceed float16's 65,504.
    converted = {key: t.to(dtype) if t.ndim > 1 else t for key, t in tensors.items()}
    for key, tensor in tensors.items():
        if converted[key].isinf().any() and tensor.isfinite().all():
            raise WeightsError(
                f"weights are too large for {str(dtype).removeprefix('torch.')}: {key!r} reaches "
                f"{tensor.abs().max():.3g}; store them as float32"
            )
    with replacing(path) as partial:
        save_tensors(partial, converted, meta)


def assemble_detector(
    tensors: Mapping[str, Tensor], *, architecture: Architecture, meta: DetectorMeta, name: str
) -> Detector:
    """Return a detector of exactly these tensors; name: the file's, for messages."""
    _check_meta(meta, architecture, name=name)
    with torch.device("meta"), skip_init():
        detector = Detector(architecture, meta)
    expected = {key: tuple(tensor.shape) for key, tensor in detector.state_dict().items()}
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    if expected != shapes:
        raise WeightsError(
            f"weights {name!r} do not fit a ResNet-{architecture.depth} detector: "
            f"{_differences(expected, shapes)}; name a complete file of a known layout"
        )
    detector.load_state_dict({key: tensor.float() for key, tensor in tensors.items()}, assign=True)
    return detector.requires_grad_(False).eval()


def architecture_of(tensors: Mapping[str, Tensor], *, name: str) -> Architecture:
    """Read depth, widths and counts from keys and shapes; name: the file's, for messages."""
    block_counts = Counter(match[1] for key in tensors if (match := _BLOCK.fullmatch(key)))
    blocks = tuple(block_counts[stage] for stage in "2345")
    bottlenecks = "backbone.res2.0.conv3.weight" in tensors
    depths = [d for d, b in BLOCKS.items() if b == blocks and (d >= 50) == bottlenecks]
    if not depths:
        raise WeightsError(
            f"weights {name!r} are not of a ResNet-18, 50, 101 or 152 detector: they have {blocks} "
            "blocks in res2 to res5; name a file in the canonical keys"
        )
    attributes = {"attributes": 0, "embedding_width": 0, "attribute_width": 0}
    try:
        if f"{PREDICTOR}.attr_score.weight" in tensors:
            attributes = {
                "attributes": len(tensors[f"{PREDICTOR}.attr_score.weight"]) - 1,
                "embedding_width": tensors[f"{PREDICTOR}.cls_embedding.weight"].shape[1],
                "attribute_width": len(tensors[f"{PREDICTOR}.fc_attr.weight"]),
            }
        return Architecture(
            depth=depths[0],
            width=len(tensors["backbone.stem.conv1.weight"]),
            classes=len(tensors[f"{PREDICTOR}.cls_score.weight"]) - 1,
            anchors=len(tensors["proposal_generator.rpn_head.objectness_logits.weight"]),
            proposal_width=len(tensors["proposal_generator.rpn_head.conv.weight"]),
            **attributes,
        )
    except KeyError as error:
        raise WeightsError(
            f"weights {name!r} lack {error.args[0]!r}; name a complete file of a known layout"
        ) from error


def _differences(
    expected: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]
) -> str:
    wrong = (key for key in expected.keys() & shapes.keys() if expected[key] != shapes[key])
    differences = {
        "missing": sorted(expected.keys() - shapes.keys()),
        "unexpected": sorted(shapes.keys() - expected.keys()),
        "of another shape": [f"{k} {shapes[k]} instead of {expected[k]}" for k in sorted(wrong)],
    }
    return ", ".join(f"{word}: {' '.join(keys)}" for word, keys in differences.items() if keys)


def load_public(path: Path) -> dict[str, Tensor]:
    """Load the tensors of an external file; WeightsError where its format is unknown."""
    with path.open("rb") as stream:
        head = stream.read(16)
    if head.lstrip().lower().startswith(_WEB_PAGE):
        raise WeightsError(
            f"weights {path.name!r} are a web page, because the download link is dead; "
            'get the file elsewhere, see "a2 weights list"'
        )
    for form in _FORMATS:
        if head.startswith(form.starts):
            return form.load(path)
    names = ", ".join(form.name for form in _FORMATS)
    raise WeightsError(
        f"weights {path.name!r} have an unknown format: the file begins with {head!r}; "
        f"name a safetensors file, {names}"
    )


def _load_canonical(path: Path) -> tuple[dict[str, Tensor], DetectorMeta]:
    tensors, metadata = load_safetensors(path)
    if META_KEY not in metadata:
        raise WeightsError(
            f"weights {path.name!r} do not state their conventions: no {META_KEY!r} in the "
            f"metadata; {_WRITE_AGAIN}"
        )
    try:
        return tensors, DetectorMeta.model_validate_json(metadata[META_KEY])
    except ValidationError as error:
        problems = ", ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        )
        raise WeightsError(
            f"weights {path.name!r} state conventions that this version does not support: "
            f"{problems}; {_WRITE_AGAIN}"
        ) from error


def _check_meta(meta: DetectorMeta, architecture: Architecture, *, name: str) -> None:
    if len(meta.anchors) != architecture.anchors:
        raise WeightsError(
            f"weights {name!r} score {architecture.anchors} anchors, their meta states "
            f"{len(meta.anchors)}; correct the meta"
        )
    if meta.background_index != architecture.classes:
        raise WeightsError(
            f"weights {name!r} have the background at {meta.background_index}, canonical weights "
            f"have it last, at {architecture.classes}; move its rows"
        )
