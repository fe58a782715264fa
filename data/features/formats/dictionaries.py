"""Dictionaries of region features in one file: a pickle, .npy, safetensors, or a file of torch.

A list, by image and then by array, by array and then by image, or with names such as ID_features.
Pickles are read without running them; an array of objects, as NumPy saves a dictionary, becomes
these.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from a2cap.data.errors import InputError
from a2cap.data.features.formats.array_values import as_text, named_arrays
from a2cap.data.features.formats.feature_source import Container, Entry, damaged
from a2cap.data.features.formats.layouts import FEATURE_NAMES, ID_NAMES, layout_of
from a2cap.data.files.pickles import Interpreter, Name, UnsafeError

Load = Callable[[Path], object]
"""Return the content of a file, with NumPy's arrays; raise ValueError if it is unusable."""

_OBJECTS = object()
"""The dtype of an array of objects; numpy's is never made from a pickle."""


def dictionary_container(load: Load, path: Path, name: str) -> Container:
    """Load a dictionary as a whole; raise InputError if the file has something else."""
    try:
        content = load(path)
    except SafetensorError as error:
        raise damaged(repr(name), error) from error
    except ValueError as error:
        raise InputError(f"{name!r} is unusable: {error}; save only arrays") from error
    if isinstance(content, list | tuple) and content and all(map(_id_of, content)):
        images = [(_id_of(record), record) for record in content]
    elif isinstance(content, Mapping):
        by_name = {str(key): value for key, value in content.items()}
        images = [*_by_image(by_name, path.stem).items()]
    else:
        raise InputError(
            f"{name!r} has a {type(content).__name__} in place of a dictionary of images, or of a "
            "list of them with image_id; name another file"
        )
    entries = [Entry(image, partial(named_arrays, arrays)) for image, arrays in images]
    return Container.of(f"{name!r} (dictionary)", entries)


def _id_of(record: object) -> str:
    """Return the id in a record of an image, an empty text without one."""
    fields = record if isinstance(record, Mapping) else {}
    return as_text(next((fields[name] for name in ID_NAMES if name in fields), ""))


def _by_image(content: Mapping[str, object], name: str) -> Mapping[str, object]:
    layout = layout_of(content)
    if layout is None:
        return _split_names(content) or content
    if not isinstance(content[layout.fields["features"]], Mapping):
        return {name: content}  # of one image
    images: dict[str, dict[str, object]] = {}
    for key, values in content.items():
        for image, value in values.items() if isinstance(values, Mapping) else ():
            images.setdefault(str(image), {})[key] = value
    return images


def _split_names(content: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return arrays with names such as ID_features by image, nothing without such names."""
    endings = [f"{mark}{name}" for name in FEATURE_NAMES for mark in "_./"]
    ending = next((e for e in endings for key in content if key.endswith(e)), "")
    images: dict[str, dict[str, object]] = {
        key.removesuffix(ending): {} for key in content if ending and key.endswith(ending)
    }
    for key, value in content.items():
        for end in (position for position, mark in enumerate(key) if mark == ending[:1]):
            if key[:end] in images:
                images[key[:end]][key[end + 1 :]] = value
    return images


@dataclass
class _FeaturePickle(Interpreter):
    def _reduce(self, called: object, arguments: object) -> object:
        if called is Name.DTYPE and arguments in (("O8", 0, 1), ("O", 0, 1)):
            return _OBJECTS
        return super()._reduce(called, arguments)

    def _build(self, built: object, state: object) -> object:
        if built is _OBJECTS:
            return built
        match state:
            case (1, (), dtype, _, [value]) if dtype is _OBJECTS:
                return value
            case (1, (_,), dtype, _, list(values)) if dtype is _OBJECTS:
                return values
        return super()._build(built, state)

    def _key(self, key: object) -> object:
        # larger numbers could all have one hash
        is_small = isinstance(key, int) and key.bit_length() < 61
        return key if is_small or isinstance(key, bytes) else super()._key(key)


def read_pickle(content: bytes) -> object:
    """Return the content; raise ValueError if it has anything but containers, numbers and text."""
    try:
        return _FeaturePickle().run(content)
    except UnsafeError as error:
        raise ValueError(
            f"unsafe pickle: it refers to {str(error)!r}, and nothing of it was run"
        ) from error
    except Exception as error:  # damaged opcodes raise any built-in error
        raise ValueError(f"damaged pickle: {error}") from error
