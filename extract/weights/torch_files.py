"""Tensors by name in files of safetensors, and of `torch.save` (`.pth`, `.bin`)."""

import pickle
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast
from zipfile import ZipFile

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from a2cap.data.errors import WeightsError
from a2cap.data.files.pickles import DamagedError, Interpreter, Name, UnsafeError, expect

_BUILDERS = ("_reconstruct", "scalar")


class _Unused:
    """An array or number of NumPy, such as an RNG state beside the tensors; it is not built."""

    def __init__(self, *content: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


_NUMPY = [
    type(name, (_Unused,), {"__module__": module})
    for module, names in (
        ("numpy", ("ndarray", "dtype")),
        ("numpy.core.multiarray", _BUILDERS),
        ("numpy._core.multiarray", _BUILDERS),
    )
    for name in names
]
"""Stand-ins under NumPy's names; torch 2.5 permits a class by its own name only."""

_REBUILDERS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter")


_WIDTHS = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "ComplexFloat": 8} | {
    **{"Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1}
}
"""Bytes of a number, by the name of its storage."""


@dataclass
class _Check(Interpreter):
    """An interpreter of the pickles in a torch file that builds no tensors.

    torch.load runs no code of a pickle, but copies an object each time that the pickle repeats it,
    and before version 2.10 it trusts the sizes of storages.

    sizes: bytes of each file in an archive.
    """

    sizes: Mapping[str, int] | None = None
    names: ClassVar[Mapping[str, Name | int | None]] = {
        "collections OrderedDict": Name.DICTIONARY,
        "collections Counter": Name.DICTIONARY,
        "_codecs encode": Name.BYTES,
        "torch Size": Name.TENSOR,
        "torch device": Name.TENSOR,
        **{f"torch._utils {name}": Name.TENSOR for name in _REBUILDERS},
        **{f"{function.__module__} {function.__name__}": Name.UNUSED for function in _NUMPY},
        "torch.storage UntypedStorage": 1,
        **{f"torch {name}Storage": width for name, width in _WIDTHS.items()},
        **{
            f"torch {k}": None for k, value in vars(torch).items() if isinstance(value, torch.dtype)
        },
    }

    def _step(self, name: str, argument: object) -> None:
        if name == "BINPERSID":
            self._check_storage(self.stack.pop())
            self.stack.append(None)
        else:
            super()._step(name, argument)

    def _check_storage(self, storage: object) -> None:
        match storage:
            case ("storage", int(width), str(key), _, int(count), *_):
                stored = width * count if self.sizes is None else self.sizes.get(f"data/{key}", 0)
                if width * count != stored:
                    raise DamagedError(f"a storage of {width * count:,} bytes has {stored:,}")
            case _:
                raise DamagedError("it refers to something that is not a storage")

    def _reduce(self, called: object, arguments: object) -> object:
        if called not in (Name.TENSOR, Name.UNUSED):
            return super()._reduce(called, arguments)
        sized = (item for item in expect(arguments, tuple) if isinstance(item, str | tuple | dict))
        self._count_copy(sum(map(len, sized)))
        return None if called is Name.TENSOR else Name.UNUSED

    def _build(self, built: object, state: object) -> object:
        return built if built is Name.UNUSED else super()._build(built, state)

    def _key(self, key: object) -> object:
        # optimisers number their parameters; larger numbers could all have one hash
        small = isinstance(key, int) and key.bit_length() < 61
        return key if small else super()._key(key)


def load_torch_content(path: Path) -> object:
    """Return the tensors of a file in their plain containers.

    Raises WeightsError where the file is damaged, or refers to anything else; no code of it is run.
    """
    try:
        _check(path, path.stat().st_size)
        with torch.serialization.safe_globals([*_NUMPY]):
            return cast(object, torch.load(path, map_location="cpu", weights_only=True))
    except (UnsafeError, pickle.UnpicklingError) as error:
        reference = str(error) if isinstance(error, UnsafeError) else "code"
        raise WeightsError(
            f"torch file {path.name!r} is unsafe: it refers to {reference!r}, and nothing of it "
            "was run; do not use this file"
        ) from error
    except Exception as error:  # damaged archives raise any built-in error
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise WeightsError(
            f"torch file {path.name!r} is damaged: {reason}; download it again"
        ) from error


def load_torch_arrays(path: Path) -> object:
    """Return the content of a file with NumPy's arrays in place of tensors.

    Raises WeightsError as `load_torch_content` does, and where tensors claim more than the file.
    """
    left = 2 * path.stat().st_size  # tensors of strides 0 could fill the memory

    def converted(value: object) -> object:
        nonlocal left
        if isinstance(value, dict):
            return {key: converted(item) for key, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        left -= value.nbytes
        if left < 0:
            raise WeightsError(
                f"torch file {path.name!r} is damaged: its tensors claim more than the file has; "
                "download it again"
            )
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()

    return converted(load_torch_content(path))


def load_torch_file(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict, or of that below "model" or "state_dict", as float32.

    Raises WeightsError as `load_torch_content` does, and for other content.
    """
    content, size = load_torch_content(path), path.stat().st_size
    fields = content if isinstance(content, dict) else {}
    model = fields.get("model", fields.get("state_dict", content))
    if not isinstance(model, dict) or not all(isinstance(v, Tensor) for v in model.values()):
        raise WeightsError(
            f"torch file {path.name!r} has no tensors by name; name a file with a state dict"
        )
    claimed = sum(tensor.nbytes for tensor in model.values())
    if claimed > 2 * size:  # of strides 0; tied weights occur twice
        raise WeightsError(
            f"torch file {path.name!r} is damaged: its tensors claim {claimed:,} bytes, the file "
            f"has {size:,}; download it again"
        )
    return {str(key): tensor.float() for key, tensor in model.items()}


def _check(path: Path, size: int) -> None:
    """Raise an error where torch.load would run other code or take far more memory than size."""
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":  # torch.load tells archives by the same bytes
            with ZipFile(file) as archive:
                members = archive.infolist()
            expanded = sum(member.file_size for member in members)
            if expanded > size:  # torch.save never packs
                raise ValueError(f"it expands to {expanded:,} bytes from {size:,}")
            sizes = {entry.filename.partition("/")[2]: entry.file_size for entry in members}
            if len(sizes) < len(members):  # whose reader would take which?
                raise ValueError("it has two files of one name")
            # read as torch reads it
            pickled = torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")
            _Check(sizes=sizes).run(pickled)
            return
        if tarfile.is_tarfile(path):  # from which torch 2.5 unpickles any code
            raise ValueError("it is a tar archive")
        file.seek(0)
        for _ in range(5):  # magic number, version, machine, content, names of storages
            _Check().run(file)


def is_safetensors(path: Path) -> bool:
    """Return whether a file begins as safetensors do, whatever its name."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def load_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors by name, and the metadata; WeightsError where the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except SafetensorError as error:
        raise WeightsError(
            f"weights {path.name!r} are damaged: {error}; download or make them again"
        ) from error
