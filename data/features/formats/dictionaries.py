"""Dictionaries of region features in one file: a pickle, safetensors, or a file of torch.

By image and then by array, by array and then by image, or with names such as ID_features.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import named_arrays
from a2cap.data.features.formats.feature_format import Entries, Entry
from a2cap.data.features.formats.layouts import FEATURE_NAMES, layout_of
from a2cap.data.features.formats.pickled import read_pickle

Load = Callable[[Path], object]
"""Return the content of a file, with NumPy's arrays."""


def dictionary_container(path: Path, load: Load) -> Entries:
    """Load a dictionary as a whole; raise InputError if the file has something else."""
    content = load(path)
    if not isinstance(content, Mapping):
        raise InputError(
            f"{path.name!r} has a {type(content).__name__} in place of a dictionary of images; "
            "name another file"
        )
    images = _by_image({str(key): value for key, value in content.items()}, path.stem)
    entries = [Entry(name, partial(named_arrays, arrays)) for name, arrays in images.items()]
    return Entries(f"{path.name!r} (dictionary)", entries)


def _by_image(content: Mapping[str, object], name: str) -> Mapping[str, object]:
    layout = layout_of(content)
    if layout is not None:
        if not isinstance(content[layout.features], Mapping):
            return {name: content}  # of one image
        parts = {key: value for key, value in content.items() if isinstance(value, Mapping)}
        images: dict[str, dict[str, object]] = {}
        for key, values in parts.items():
            for image, value in values.items():
                images.setdefault(str(image), {})[key] = value
        return images
    return _split_names(content) or content


def _split_names(content: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return arrays with names such as ID_features by image, nothing without such names."""
    endings = [f"{mark}{name}" for name in FEATURE_NAMES for mark in "_./"]
    images: dict[str, dict[str, object]] = {}
    ending = next((one for one in endings for key in content if key.endswith(one)), "")
    for key in content:
        if ending and key.endswith(ending):
            images[key.removesuffix(ending)] = {}
    for key, value in content.items():
        for end in (position for position, mark in enumerate(key) if mark == ending[:1]):
            if key[:end] in images:
                images[key[:end]][key[end + 1 :]] = value
    return images


def load_pickle(path: Path) -> object:
    """Return the content of a pickle; raise InputError if it is damaged or has more than arrays."""
    try:
        return read_pickle(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path.name!r} is unusable: {error}; save only arrays") from error


def load_safetensors(path: Path) -> object:
    """Return the arrays of a file of safetensors by name."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path.name!r} is damaged: {error}; download it again") from error
