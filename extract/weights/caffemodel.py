"""Caffe's `.caffemodel`, a protocol buffer (caffe.proto of BVLC/caffe), read without caffe."""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.errors import WeightsError

Blobs = dict[str, list[NDArray[np.float32]]]
"""Arrays by layer name, in caffe's order."""

_LEGACY_SIZES = ("num", "channels", "height", "width")
_MOST_ARRAYS, _MOST_SIZES = 10_000, 32
"""A ResNet-101 has 700 arrays; caffe itself allows 32 sizes."""

_HEADS = {
    "rpn_conv/3x3": "proposal_generator.rpn_head.conv",
    "rpn_cls_score": "proposal_generator.rpn_head.objectness_logits",
    "rpn_bbox_pred": "proposal_generator.rpn_head.anchor_deltas",
    "cls_score": "roi_heads.box_predictor.cls_score",
    "bbox_pred": "roi_heads.box_predictor.bbox_pred",
    "cls_embedding": "roi_heads.box_predictor.cls_embedding",
    "fc_attr": "roi_heads.box_predictor.fc_attr",
    "attr_score": "roi_heads.box_predictor.attr_score",
}
_BRANCHES = {"1": "shortcut", "2a": "conv1", "2b": "conv2", "2c": "conv3"}
_RESIDUAL = re.compile(r"(res|bn|scale)([2-5])([a-z])(\d*)_branch(1|2a|2b|2c)")
_STATISTICS = 3
"""Blobs of a normalisation: mean, variance, and the count that both are multiplied by."""
_STEM = {"conv1": "res", "bn_conv1": "bn", "scale_conv1": "scale"}


# The fields of caffe.proto that contain weights. `data` is packed floats, which have the same
# bytes as a string: parsed as such, they become an array without an object for each number.
_FIELDS: dict[str, dict[str, tuple[int, str, str]]] = {
    "NetParameter": {"layer": (100, "repeated", "LayerParameter")},
    "LayerParameter": {
        "name": (1, "optional", "bytes"),
        "blobs": (7, "repeated", "BlobProto"),
        "batch_norm_param": (139, "optional", "BatchNormParameter"),
    },
    "BatchNormParameter": {"eps": (3, "optional", "float")},
    "BlobProto": {
        **{name: (n, "optional", "int32") for n, name in enumerate(_LEGACY_SIZES, start=1)},
        "data": (5, "repeated", "bytes"),
        "shape": (7, "optional", "BlobShape"),
    },
    "BlobShape": {"dim": (1, "repeated", "uint64")},
}
"""Message -> field -> number, label and type."""


class _DamagedError(ValueError):
    """The bytes are not a caffemodel."""


@cache
def _net_parameter() -> type[Any]:
    """Return the class of caffe's NetParameter, with the fields that contain weights."""
    file = FileDescriptorProto(name="caffe_weights.proto", package="caffe", syntax="proto2")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for name, (number, label, kind) in fields.items():
            is_message = kind in _FIELDS
            described.field.add(
                name=name,
                number=number,
                label=f"LABEL_{label.upper()}",
                type="TYPE_MESSAGE" if is_message else f"TYPE_{kind.upper()}",
                type_name=f".caffe.{kind}" if is_message else None,
            )
    pool = DescriptorPool()
    pool.Add(file)
    net: type[Any] = GetMessageClass(pool.FindMessageTypeByName("caffe.NetParameter"))
    return net


def load_caffemodel(path: Path) -> dict[str, Tensor]:
    """Load float32 tensors by detectron2's keys; class rows stay in caffe's order.

    Unknown layers keep their name, so that the check of keys can list them. Raises WeightsError
    where the file is damaged or has no layers with weights.
    """
    try:
        layers = read_blobs(path.read_bytes())
        return {
            key: torch.from_numpy(array)
            for name, arrays in layers.items()
            for key, array in _by_key(name, arrays).items()
        }
    except ValueError as error:
        raise WeightsError(
            f"caffemodel {path.name!r} is damaged: {error}; download it again"
        ) from error


def read_blobs(data: bytes) -> Blobs:
    """Read the arrays of every layer with weights."""
    net = _net_parameter()()
    try:
        net.ParseFromString(data)
    except DecodeError as error:
        raise _DamagedError("it is not a whole protocol buffer") from error
    if sum(len(layer.blobs) for layer in net.layer) >= _MOST_ARRAYS:
        raise _DamagedError(f"it has {_MOST_ARRAYS:,} arrays or more")
    blobs = {
        layer.name.decode("utf-8", "replace"): list(_arrays(layer))
        for layer in net.layer
        if layer.name and layer.blobs
    }
    if not blobs:
        raise _DamagedError("no layer has weights")
    return blobs


def _arrays(layer: Any) -> Iterator[NDArray[np.float32]]:
    """Yield the blobs of a layer, then the epsilon of a normalisation that states one."""
    yield from map(_array, layer.blobs)
    if layer.batch_norm_param.HasField("eps"):
        yield np.array([layer.batch_norm_param.eps], np.float32)


def _array(blob: Any) -> NDArray[np.float32]:
    """Return one BlobProto as an array of its shape."""
    content = b"".join(blob.data)
    if len(content) % 4:
        raise _DamagedError(f"{len(content)} bytes are not floats")
    data = np.frombuffer(content, "<f4").astype(np.float32)
    sizes = list(blob.shape.dim[: _MOST_SIZES + 1])
    if not sizes:
        legacy = [getattr(blob, name) if blob.HasField(name) else 1 for name in _LEGACY_SIZES]
        # old files give every blob four sizes: a bias is 1 x 1 x 1 x N
        sizes = list(dropwhile(lambda size: size == 1, legacy[:-1])) + legacy[-1:]
    # an empty blob may claim any other sizes, which NumPy could not represent
    if len(sizes) > _MOST_SIZES or math.prod(sizes) != len(data) or not len(data):
        raise _DamagedError(f"{len(data)} numbers do not fill {sizes}")
    return data.reshape(sizes)


def _by_key(name: str, arrays: list[NDArray[np.float32]]) -> Mapping[str, NDArray[np.float32]]:
    """Return a layer's arrays by detectron2's keys."""
    kind, key = "res", _HEADS.get(name, name)
    if name in _STEM:
        kind, key = _STEM[name], "backbone.stem.conv1"
    elif match := _RESIDUAL.fullmatch(name):
        kind, stage, letter, number, branch = match.groups()
        unit = int(number) if number else ord(letter) - ord("a")
        part = "roi_heads" if stage == "5" else "backbone"
        key = f"{part}.res{stage}.{unit}.{_BRANCHES[branch]}"
    if kind == "bn":
        return _statistics(name, key, arrays)
    names = ("weight", "bias", *(f"blob {number}" for number in range(2, len(arrays))))
    key += ".norm" if kind == "scale" else ""  # gamma and beta
    return {f"{key}.{name}": array for name, array in zip(names, arrays, strict=False)}


def _statistics(
    name: str, key: str, arrays: list[NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return mean and variance of a BatchNorm layer."""
    if len(arrays) not in (_STATISTICS, _STATISTICS + 1):
        raise _DamagedError(f"layer {name!r} has {len(arrays)} blobs, not {_STATISTICS}")
    mean, variance, count, *epsilon = arrays  # sums, to be divided by the third blob
    divisor = 1 / count.item() if count.item() else 0.0  # as caffe's BatchNormLayer does
    return {
        f"{key}.norm.running_mean": mean * np.float32(divisor),
        f"{key}.norm.running_var": variance * np.float32(divisor),
        **{f"{key}.norm.eps": value for value in epsilon},  # where it is not caffe's default
    }
