"""An interpreter of pickles that hold containers, numbers, texts and arrays, and nothing else.

A pickle is a program, and even `numpy.dtype` and `numpy.ndarray` are unsafe to call from one: a
forged object dtype turns bytes into pointers. So nothing is unpickled here. This module interprets
the opcodes that arrays in plain containers need and builds each array itself. `torch_files` checks
files of torch with the same interpreter before torch unpickles them.
"""

import math
import pickletools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import BinaryIO, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Kind = TypeVar("Kind")

OLD_TORCH = b"\x80\x02\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""Pickled magic number of `torch.save` before version 1.6; later files are ZIP archives."""


class UnsafeError(Exception):
    """A name that arrays do not need."""


class DamagedError(Exception):
    """Opcodes that do not describe arrays in plain containers."""


@dataclass
class _DType:
    """A dtype of numbers; `dtype` is None until the BUILD opcode has given the byte order."""

    code: str
    dtype: np.dtype[np.generic] | None = None


@dataclass
class _Draft:
    """An array; `array` is None until the BUILD opcode has given shape and numbers."""

    array: Array | None = None


class Name(Enum):
    """A permitted name, by the result of calling it; an unused object is not built."""

    NDARRAY, DTYPE, ARRAY, FILLED_ARRAY, BYTES, NO_BYTES, DICTIONARY, RECORD, SCALAR = range(9)
    TENSOR, UNUSED = range(9, 11)


_NAMES = {
    "numpy ndarray": Name.NDARRAY,
    "numpy dtype": Name.DTYPE,
    "numpy.core.multiarray _reconstruct": Name.ARRAY,
    "numpy._core.multiarray _reconstruct": Name.ARRAY,
    "numpy.core.numeric _frombuffer": Name.FILLED_ARRAY,  # protocol 5
    "numpy._core.numeric _frombuffer": Name.FILLED_ARRAY,
    "_codecs encode": Name.BYTES,
    "__builtin__ bytes": Name.NO_BYTES,  # of an empty array, as Python 3 writes protocol 2
    "builtins bytes": Name.NO_BYTES,
    "collections OrderedDict": Name.DICTIONARY,
    # of captioners: their vocabulary and options become dictionaries of their attributes
    "numpy.core.multiarray scalar": Name.SCALAR,
    "numpy._core.multiarray scalar": Name.SCALAR,
    **dict.fromkeys(
        (
            "collections Counter",
            "collections defaultdict",
            "argparse Namespace",
            "data.vocab Vocab",
            "data.vocab _default_unk_index",
            "torchtext.vocab Vocab",
            "torchtext.vocab _default_unk_index",
        ),
        Name.RECORD,
    ),
}


class _Record(dict[str, object]):
    """The attributes of an object."""


_CODES = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}
_MARK = object()

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    "BYTEARRAY8",
)
"""Opcodes that push their argument. Strings of Python 2 are read as latin-1, as numpy's were."""
_FIXED_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MOST_OPCODES = 1_000_000
"""Far more than weights have; one opcode of one byte makes a dictionary of 64."""


@dataclass
class Interpreter:
    """A stack machine for the opcodes of pickled arrays, as in the standard library's pickle.py.

    position: bytes of the file that were read.
    arrays: bytes of all arrays together, at most the size of the file.
    copies: characters and entries copied from other objects, at most the size of the file.
    """

    names: ClassVar[Mapping[str, Name | int | None]] = _NAMES
    position: int = 0
    arrays: int = 0
    copies: int = 0
    stack: list[object] = field(default_factory=list)
    memo: dict[int, object] = field(default_factory=dict)

    def run(self, content: bytes | BinaryIO) -> object:
        """Interpret a whole pickle and return its value."""
        for number, (opcode, argument, position) in enumerate(pickletools.genops(content)):
            self.position = position or 0
            if number > _MOST_OPCODES:
                raise DamagedError(f"it has more than {_MOST_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                (value,) = self.stack
                return value
            self._step(opcode.name, argument)
        raise DamagedError("it has no end")

    def _step(self, name: str, argument: object) -> None:
        # Values are pushed, and an opcode that needs some takes them from the top of the stack. The
        # memo repeats an object, so an array is a `_Draft` there until BUILD has filled it.
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _ARGUMENTS:
            self.stack.append(argument)
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            value = self.memo[expect(argument, int)]
            self.stack.append(value.array if isinstance(value, _Draft) else value)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[expect(argument, int)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in ("GLOBAL", "STACK_GLOBAL", "INST"):
            self._push_name(argument)
        elif name in ("REDUCE", "NEWOBJ", "BUILD"):
            state, to = self.stack.pop(), self.stack.pop()
            is_record = isinstance(to, Name) and to in (Name.RECORD, Name.SCALAR)
            make = self._reduce_record if is_record else self._reduce
            self.stack.append(self._build(to, state) if name == "BUILD" else make(to, state))
        elif name not in ("PROTO", "FRAME"):
            self._step_container(name)

    def _step_container(self, name: str) -> None:
        if name == "MARK":
            self.stack.append(_MARK)
        elif name in _FIXED_TUPLES:
            items = [self.stack.pop() for _ in range(_FIXED_TUPLES[name])]
            self.stack.append(tuple(reversed(items)))
        elif name == "TUPLE":
            self.stack.append(tuple(self._pop_to_mark()))
        elif name in ("EMPTY_LIST", "LIST"):
            self.stack.append([] if name == "EMPTY_LIST" else self._pop_to_mark())
        elif name in ("EMPTY_DICT", "DICT"):
            items = [] if name == "EMPTY_DICT" else self._pop_to_mark()
            self.stack.append({})
            self._fill(self.stack[-1], zip(items[::2], items[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            items = [self.stack.pop()] if name == "APPEND" else self._pop_to_mark()
            expect(self.stack[-1], list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            if name == "SETITEM":
                self.stack.insert(-2, _MARK)
            items = self._pop_to_mark()
            self._fill(self.stack[-1], zip(items[::2], items[1::2], strict=True))
        else:
            raise DamagedError(f"arrays do not need the opcode {name}")

    def _pop_to_mark(self) -> list[object]:
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise DamagedError("a mark is missing")
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def _push_name(self, argument: object) -> None:
        if argument is None:  # STACK_GLOBAL has module and name on the stack
            name, module = self.stack.pop(), self.stack.pop()
            argument = f"{expect(module, str)} {expect(name, str)}"
        text = str(argument)
        if text not in self.names:
            raise UnsafeError(text.replace(" ", ".")[:80])
        self.stack.append(self.names[text])

    def _reduce(self, called: object, arguments: object) -> object:
        match called, arguments:
            case Name.DTYPE, (str(code), 0, 1) if code in _CODES:
                return _DType(code)
            case Name.ARRAY, (Name.NDARRAY, (0,), (b"b" | "b")):
                return _Draft()
            case Name.FILLED_ARRAY, (
                (bytes() | bytearray()) as data,
                _DType(dtype=np.dtype() as dtype),
                tuple(shape),
                ("C" | "F") as order,
            ):
                return self._array(shape, dtype, bytes(data), order == "F")
            case Name.BYTES, (str(text), "latin1"):  # bytes as Python 3 writes them in protocol 2
                self._count_copy(len(text))
                return text.encode("latin1")
            case ((Name.NO_BYTES | Name.DICTIONARY), ()):
                return b"" if called is Name.NO_BYTES else {}
            case Name.DICTIONARY, ((dict() | list()) as pairs,):  # lists as Python 2 writes them
                self._count_copy(len(pairs))
                if isinstance(pairs, dict):
                    pairs = [list(pair) for pair in pairs.items()]
                dictionary: dict[object, object] = {}
                self._fill(dictionary, (expect(pair, list) for pair in pairs))
                return dictionary
        raise DamagedError("it calls something that does not make an array of numbers")

    def _reduce_record(self, called: object, arguments: object) -> object:
        match called, arguments:
            case Name.RECORD, (() | (Name.RECORD,)):
                return _Record()
            case Name.RECORD, (dict(counts),):
                return counts
            case Name.SCALAR, (_DType(dtype=np.dtype() as dtype), (bytes() | str()) as data):
                content = data.encode("latin1") if isinstance(data, str) else data
                return self._array((), dtype, content, False).item()
        raise DamagedError("it calls something that does not make a vocabulary or options")

    def _build(self, built: object, state: object) -> object:
        match built, state:
            case _DType(dtype=None), (3, ("<" | ">" | "|") as order, None, None, None, -1, -1, 0):
                built.dtype = np.dtype(order.replace("|", "=") + built.code)
                return built
            case _Draft(array=None), (
                1,
                tuple(shape),
                _DType(dtype=np.dtype() as dtype),
                order,
                data,
            ):
                # Python 2 pickles bytes as a string
                content = data.encode("latin1") if isinstance(data, str) else data
                built.array = self._array(shape, dtype, expect(content, bytes), bool(order))
                return built.array
            case _Record(), dict():
                self._count_copy(len(state))
                built.update(state)
                return built
            case dict(), dict():  # attributes of an OrderedDict, such as torch's _metadata
                self._count_copy(len(state))
                return built
        raise DamagedError("the state of an array or dtype is unknown")

    def _fill(self, dictionary: object, pairs: Iterable[Sequence[object]]) -> None:
        for key, value in pairs:
            expect(dictionary, dict)[self._key(key)] = value

    def _key(self, key: object) -> object:
        # hashing a tuple that a pickle has nested 60 times in itself would not end
        return expect(key, str)

    def _count_copy(self, size: int) -> None:
        self.copies += size
        # GET can repeat one string or dictionary, and each use copies it
        if self.copies > self.position:
            raise DamagedError("its copies are larger than the file")

    def _array(
        self, shape: Sequence[object], dtype: np.dtype[np.generic], content: bytes, fortran: bool
    ) -> Array:
        sizes = [expect(size, int) for size in shape]
        # sizes are compared as Python's integers, which do not overflow
        if min(sizes, default=0) < 0 or math.prod(sizes) * dtype.itemsize != len(content):
            raise DamagedError(f"{len(content)} bytes do not fill an array of its shape")
        self.arrays += len(content)  # GET can repeat the bytes of one string in many arrays
        if self.arrays > self.position:
            raise DamagedError("its arrays are larger than the file")
        flat = np.frombuffer(content, dtype) if content else np.empty(0, dtype)
        return flat.reshape(sizes, order="F" if fortran else "C")


def expect(value: object, kind: type[Kind]) -> Kind:
    """Return the value; DamagedError where it is of another type."""
    if not isinstance(value, kind):
        raise DamagedError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value
