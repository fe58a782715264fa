"""Caffe's `.caffemodel`, a protocol buffer, read without caffe and without a schema compiler.

See caffe.proto of BVLC/caffe, and protobuf.dev/programming-guides/encoding for the wire format.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from a2cap.data.errors import WeightsError

Blobs = dict[str, list[NDArray[np.float32]]]
"""Arrays by layer name, in caffe's order."""

# Only the fields that contain weights are read: NetParameter.layer with name, blobs and the epsilon
# of batch_norm_param, and of a blob its shape, the four legacy sizes and the packed floats.
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_LAYER, _NAME, _BLOBS = 100, 1, 7
_NORMALISATION, _EPSILON = 139, 3
_LEGACY_SIZES, _DATA, _SHAPE = (1, 2, 3, 4), 5, 7

# A byte of the file could otherwise become an object of a hundred: loading takes about four times
# the file. A ResNet-101 has 700 arrays; caffe itself allows 32 sizes.
_MOST_ARRAYS, _MOST_SIZES = 10_000, 32

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


class _DamagedError(ValueError):
    """The bytes are not a caffemodel."""


def load_caffemodel(path: Path) -> dict[str, Tensor]:
    """Load float32 tensors by detectron2's keys; class rows stay in caffe's order.

    Unknown layers keep their name, so that the check of keys can list them. Raises WeightsError
    where the file is damaged or has no layers with weights.
    """
    try:
        layers = read_blobs(memoryview(path.read_bytes()))
        return {
            key: torch.from_numpy(array)
            for name, arrays in layers.items()
            for key, array in _by_key(name, arrays).items()
        }
    except ValueError as error:
        raise WeightsError(
            f"caffemodel {path.name!r} is damaged: {error}; download it again"
        ) from error


def read_blobs(data: memoryview) -> Blobs:
    """Read the arrays of every layer with weights."""
    found: Blobs = {}
    left = _MOST_ARRAYS
    for layer in _messages(data, _LAYER):
        name = next(_messages(layer, _NAME), None)
        arrays = list(islice(_arrays(layer), left))
        left -= len(arrays)
        if not left:
            raise _DamagedError(f"it has {_MOST_ARRAYS:,} arrays or more")
        if name is not None and arrays:
            found[bytes(name).decode("utf-8", "replace")] = arrays
    if not found:
        raise _DamagedError("no layer has weights")
    return found


def _arrays(layer: memoryview) -> Iterator[NDArray[np.float32]]:
    """Yield the blobs of a layer, then the epsilon of a normalisation that states one."""
    yield from map(_array, _messages(layer, _BLOBS))
    for settings in _messages(layer, _NORMALISATION):
        for epsilon in _messages(settings, _EPSILON):
            yield np.frombuffer(epsilon, "<f4").astype(np.float32)


def _array(blob: memoryview) -> NDArray[np.float32]:
    """Return one BlobProto as an array of its shape."""
    shape: list[int] = []
    legacy: dict[int, int] = {}
    values: list[NDArray[np.float32]] = []
    for number, value in _fields(blob):
        if number == _SHAPE and isinstance(value, memoryview):
            shape = list(islice(_sizes(value), _MOST_SIZES + 1))
        elif number in _LEGACY_SIZES and isinstance(value, int):
            legacy[number] = value
        elif number == _DATA and isinstance(value, memoryview):
            if len(value) % 4:
                raise _DamagedError(f"{len(value)} bytes are not floats")
            values.append(np.frombuffer(value, "<f4").astype(np.float32))
    data = np.concatenate(values) if values else np.empty(0, np.float32)
    sizes = shape or [legacy.get(number, 1) for number in _LEGACY_SIZES]
    # old files give every blob four sizes: a bias is 1 x 1 x 1 x N
    while not shape and len(sizes) > 1 and sizes[0] == 1:
        sizes = sizes[1:]
    # an empty blob may claim any other sizes, which NumPy could not represent
    if len(sizes) > _MOST_SIZES or math.prod(sizes) != len(data) or not len(data):
        raise _DamagedError(f"{len(data)} numbers do not fill {sizes}")
    return data.reshape(sizes)


def _sizes(shape: memoryview) -> Iterator[int]:
    """Yield BlobShape.dim, packed or one by one."""
    for value in (value for number, value in _fields(shape) if number == 1):
        if isinstance(value, int):
            yield value
            continue
        position = 0
        while position < len(value):
            size, position = _varint(value, position)
            yield size


def _messages(data: memoryview, number: int) -> Iterator[memoryview]:
    """Yield the values of one field that are messages or strings."""
    for found, value in _fields(data):
        if found == number and isinstance(value, memoryview):
            yield value


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield number and value of each field of a message; fixed-size values are raw bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _LENGTH:
            length, position = _varint(data, position)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise _DamagedError(f"unknown field type {kind} at byte {position}")
        end = position + length
        if end > len(data):
            raise _DamagedError(f"a field of {length} bytes ends after the file does")
        yield number, data[position:end]
        position = end


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return a number of 7 bits per byte, lowest first, and the position after it."""
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise _DamagedError(f"a number has no end at byte {position}")


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
