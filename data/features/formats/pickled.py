"""Pickles of region features: dictionaries of arrays, numbers and text, read without running them.

Keys may be numbers, and an array of objects, as NumPy saves a dictionary, becomes its objects.
"""

from dataclasses import dataclass

from a2cap.data.files.pickles import Interpreter, Name, UnsafeError

_OBJECTS = object()
"""The dtype of an array of objects; numpy's is never made from a pickle."""


@dataclass
class _FeaturePickle(Interpreter):
    def _reduce(self, called: object, arguments: object) -> object:
        match called, arguments:
            case Name.DTYPE, ("O8" | "O", 0, 1):
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
