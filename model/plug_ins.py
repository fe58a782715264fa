"""Code outside a2, named `module:name`: who may import it, and what identifies it.

To import a module runs its code. A configuration may name any module, because the user wrote it;
the files of a captioner may come from elsewhere, so they name only what the program has imported,
what an installed package declares as an entry point, or what A2CAP_TRUST names.
"""

import hashlib
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from numbers import Real
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from a2cap.model.errors import PlugInError

MAY_IMPORT = {"may_import": True}
"""Context of the validation of what the user wrote, which may name any module."""
LONGEST = 200
"""Characters of a name, or of the reason of a failed import."""
TRUST = "A2CAP_TRUST"
"""Environment variable: names, comma-separated, that files of captioners may import."""

_used: list[str] = []
"""The user's code that this process imported, `module:name`."""
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.+!-]+", re.ASCII)


@dataclass(frozen=True)
class PlugIn:
    """The code of a captioner, reward or metric outside a2, in the key of what it made.

    package, version: of the distribution, None for modules that are not installed. sources: sha256
    of the module's file and of all Python files of its top-level package.
    """

    package: str | None
    version: str | None
    sources: str

    @property
    def requirement(self) -> str:
        """What pip installs, "" for modules that are not installed."""
        text = "" if self.package is None else f"{self.package}=={self.version}"
        return text if _REQUIREMENT.fullmatch(text) else ""

    @property
    def is_installed(self) -> bool:
        """Return True if the package, or another version of it, is installed."""
        with suppress(PackageNotFoundError, ValueError):
            return not self.requirement or bool(version(str(self.package)))
        return False


def plug_in_of(path: str) -> PlugIn | None:
    """Return what identifies the code of an imported `module:name`, None for a name of a2."""
    if ":" not in path:
        return None
    name = path.partition(":")[0]
    top, module = sys.modules[name.partition(".")[0]], sys.modules[name]
    files = {Path(str(module.__file__))}
    for folder in getattr(top, "__path__", ()):
        files |= set(Path(folder).rglob("*.py"))
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    package = _package_of(top)
    return PlugIn(package, None if package is None else version(package), digest.hexdigest())


@cache  # it reads the lists of files of all installed packages
def _package_of(module: ModuleType) -> str | None:
    [package] = packages_distributions().get(module.__name__, [None])[:1]
    return package


def _find_function(path: str) -> Callable[..., Any]:
    function = find_object(path, may_import=True)
    if not callable(function):
        raise PlugInError(f"{path!r} is not a function; name one")
    return function


def names_a_function(path: str, info: ValidationInfo) -> str:
    """Return `module:function`; ValueError for another form, PlugInError for no function."""
    if not is_path(path):
        raise ValueError(f"{path!r} is not module:function; name a function of a module")
    if info.context == MAY_IMPORT:
        _find_function(path)
    return path


Function = Annotated[str, AfterValidator(names_a_function)]
"""A user's reward or metric, `module:function`: called by `call_function`."""


def call_function(
    path: str, captions: Sequence[str], references: Sequence[Sequence[str]]
) -> list[float]:
    """Return the number that a user's function gives each of N captions; PlugInError if it fails.

    captions: N texts, tokens joined by spaces; references: one or more of each caption.
    """
    function = _find_function(path)
    try:
        returned = function(captions, references)
        numbers = [returned] if isinstance(returned, Real) else returned
        values = [float(number) for number in numbers]
    except (Exception, SystemExit) as error:  # it is the user's
        raise failed(path, error, _line_of(error, {_file_of(path)})) from error
    if len(values) != len(captions):
        raise PlugInError(
            f"{path!r} returned {len(values)} numbers for {len(captions)} captions; "
            "return one number for each"
        )
    if odd := [number for number, value in enumerate(values) if not math.isfinite(value)]:
        raise PlugInError(
            f"{path!r} returned {values[odd[0]]} for {len(odd)} of {len(captions)} captions, first "
            f"for {captions[odd[0]]!r:.{LONGEST}}; return finite numbers"
        )
    return values


def failed(path: str, error: BaseException, where: str = "") -> PlugInError:
    """Return the one line about a user's code that raised an error."""
    reason = f"{type(error).__name__}: {_short(error)}{where}"
    return PlugInError(f"{path!r} failed ({reason}); correct it and run again")


def failed_plug_in(error: Exception) -> PlugInError | None:
    """Return the line about an error while a user's code was in use, None if none was.

    It names the last line of that code on the way to the error, or else the last line: a result of
    a wrong shape fails later, in a2.
    """
    files = {file: path for path in _used if (file := _file_of(path))}
    frames = extract_tb(error.__traceback__)
    if not files or not frames:
        return None
    paths = [files[frame.filename] for frame in frames if frame.filename in files]
    path = paths[-1] if paths else " or ".join(files.values())
    return failed(path, error, _line_of(error, files))


def _file_of(path: str) -> str:
    """Return the file of an imported `module:name`, "" if it is not imported."""
    return str(getattr(sys.modules.get(path.partition(":")[0]), "__file__", None) or "")


def _line_of(error: BaseException, files: Collection[str]) -> str:
    """Return the last line in these files on the way to an error, or else the last line of all."""
    frames = extract_tb(error.__traceback__)
    last = [frame for frame in frames if frame.filename in files][-1:] or frames[-1:]
    return f"; {Path(last[0].filename).name}, line {last[0].lineno}" if last else ""


def is_path(name: str) -> bool:
    """Return True for `module:name`."""
    return len(name) <= LONGEST and _PATH.fullmatch(name) is not None


def find_object(path: str, *, may_import: bool, group: str = "") -> object:
    """Return what `module:name` names, None if the module has no such name.

    may_import: False where the user does not name it, so that it is imported only if it is trusted.
    group: of entry points that are. Raises PlugInError.
    """
    module, _, name = path.partition(":")
    if module not in sys.modules and not (may_import or _is_trusted(path, group)):
        raise PlugInError(
            f"{path!r} is code outside a2, which a file does not make a2 run; if you trust its "
            f"author, set {TRUST}={path}"
        )
    try:
        # without `getattr`, which may call the module's own function
        content = vars(import_module(module)).get(name)
    except (Exception, SystemExit) as error:
        raise PlugInError(
            f"cannot import {module!r} ({type(error).__name__}: {_short(error)}); install its "
            "package, or set PYTHONPATH to its folder"
        ) from error
    if module == "__main__" or not getattr(sys.modules[module], "__file__", None):
        raise PlugInError(f"{path!r} has no file that others can import; move it into a module")
    if not module.startswith("a2cap.") and path not in _used:
        _used.append(path)
    return content


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:LONGEST]


def _is_trusted(path: str, group: str) -> bool:
    """Return True if the environment or an entry point of an installed package names the path."""
    trusted = [path.strip() for path in os.environ.get(TRUST, "").split(",")]
    return path in trusted or any(
        point.value.replace(" ", "") == path for point in entry_points(group=group)
    )
