"""Kinds of captioners: those of a2, and classes of other packages.

A kind is a name in KINDS, an entry point of the group `a2cap.captioners`, or `module:Class`. To
import a module runs its code. A configuration may name any module, because the user wrote it; the
files of a captioner may come from elsewhere, so they name only classes that the program has
imported, that an installed package declares as an entry point, or that A2CAP_TRUST names.
This module does not import torch; the class of a kind does.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING

from a2cap.model.captioners.captioner_settings import CaptionerSettings
from a2cap.model.captioners.m2_config import M2Config
from a2cap.model.captioners.recurrent.aoa_config import AoaConfig
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from a2cap.model.captioners.recurrent.nic_config import NicConfig
from a2cap.model.captioners.recurrent.show_attend_tell_config import ShowAttendTellConfig
from a2cap.model.captioners.recurrent.up_down_config import UpDownConfig
from a2cap.model.captioners.spatial_config import SpatialConfig
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.errors import KindError

if TYPE_CHECKING:
    from a2cap.model.captioners.encoder_decoder import EncoderDecoder

_HERE = "a2cap.model.captioners"

KINDS: dict[str, tuple[type[CaptionerSettings], str]] = {
    "transformer": (TransformerConfig, f"{_HERE}.transformer.transformer:TransformerCaptioner"),
    "up-down": (UpDownConfig, f"{_HERE}.recurrent.up_down:UpDownCaptioner"),
    "show-attend-tell": (
        ShowAttendTellConfig,
        f"{_HERE}.recurrent.show_attend_tell:ShowAttendTellCaptioner",
    ),
    "spatial": (SpatialConfig, f"{_HERE}.spatial:SpatialCaptioner"),
    "gru": (GruConfig, f"{_HERE}.recurrent.gru:GruCaptioner"),
    "aoa": (AoaConfig, f"{_HERE}.recurrent.aoa:AoaCaptioner"),
    "m2": (M2Config, f"{_HERE}.m2:M2Captioner"),
    "nic": (NicConfig, f"{_HERE}.recurrent.nic:NicCaptioner"),
}
"""Kind -> its settings, which do not import torch, and its class as `module:Class`."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.+!-]+", re.ASCII)

_LONGEST = 200  # characters of a kind, or of the reason of a failed import

ENTRY_POINTS = "a2cap.captioners"
TRUST = "A2CAP_TRUST"
"""Environment variable: classes, comma-separated, that files of captioners may import."""

_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class PlugIn:
    """The code of a captioner outside a2, in the key of its training and in its folder.

    package, version: of the distribution, None for modules that are not installed. sources: sha256
    of the module's file and of all Python files of its top-level package.
    """

    package: str | None
    version: str | None
    sources: str

    @property
    def requirement(self) -> str:
        """What pip installs, "" for modules that are not installed."""
        found = "" if self.package is None else f"{self.package}=={self.version}"
        return found if _REQUIREMENT.fullmatch(found) else ""

    @property
    def is_installed(self) -> bool:
        """Return True if the package, or another version of it, is installed."""
        with suppress(PackageNotFoundError, ValueError):
            return not self.requirement or bool(version(str(self.package)))
        return False


def find_settings(kind: str, *, may_import: bool) -> tuple[str, type[CaptionerSettings]]:
    """Return a kind as a key contains it, `module:Class` for a plug-in, and its settings' class.

    may_import: False for a kind that a file of a captioner names. Raises KindError.
    """
    if kind in KINDS:
        return kind, KINDS[kind][0]
    path = _path_of(kind)
    settings = getattr(_find_class(path, may_import=may_import), "settings", None)
    if not (isinstance(settings, type) and issubclass(settings, CaptionerSettings)):
        raise KindError(
            f"{path!r} has no settings: set its attribute `settings` to a subclass of "
            "a2cap.model.captioners.captioner_settings.CaptionerSettings"
        )
    return path, settings


def make_captioner(
    config: CaptionerSettings, *, feature_width: int, vocabulary_size: int
) -> "EncoderDecoder":
    """Create an untrained captioner; its settings were validated, so that its class may load."""
    path = KINDS[config.kind][1] if config.kind in KINDS else config.kind
    found = _find_class(path, may_import=True)
    return found(config, feature_width=feature_width, vocabulary_size=vocabulary_size)


def plug_in_of(kind: str) -> PlugIn | None:
    """Return what identifies the code of an imported kind, None for a kind of a2."""
    if kind in KINDS:
        return None
    name = kind.partition(":")[0]
    top, module = sys.modules[name.partition(".")[0]], sys.modules[name]
    files = {Path(str(module.__file__))}
    for folder in getattr(top, "__path__", ()):
        files |= set(Path(folder).rglob("*.py"))
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    [package] = packages_distributions().get(top.__name__, [None])[:1]
    return PlugIn(package, None if package is None else version(package), digest.hexdigest())


def _path_of(kind: str) -> str:
    """Return `module:Class` of a plug-in."""
    if len(kind) <= _LONGEST and _CLASS.fullmatch(kind):
        return kind
    declared = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    if kind in declared:
        return declared[kind]
    known, kind = [*KINDS, *sorted(declared)], kind[:_LONGEST]
    nearest = get_close_matches(kind, known, n=1, cutoff=0.3) or known
    raise KindError(
        f"unknown kind {kind!r}; did you mean {nearest[0]!r}? Kinds: {', '.join(known)}, or "
        "module:Class of an installed package"
    )


def _find_class(path: str, *, may_import: bool) -> Callable[..., "EncoderDecoder"]:
    """Return a class by `module:Class`, imported only where that is allowed."""
    module, _, name = path.partition(":")
    if module not in sys.modules and not (may_import or _is_trusted(path)):
        raise KindError(
            f"{path!r} is code outside a2, which a file does not make a2 run; if you trust its "
            f"author, set {TRUST}={path}"
        )
    try:
        # without `getattr`, which may call the module's own function
        found = vars(import_module(module)).get(name)
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())[:_LONGEST]
        raise KindError(
            f"cannot import {module!r} ({type(error).__name__}: {reason}); install its package, or "
            "set PYTHONPATH to its folder"
        ) from error
    base = sys.modules.get(f"{_HERE}.encoder_decoder")  # which its subclasses have imported
    if base is None or not (isinstance(found, type) and issubclass(found, base.EncoderDecoder)):
        raise KindError(
            f"{path!r} is not a captioner: it must be a subclass of "
            "a2cap.model.captioners.encoder_decoder.EncoderDecoder"
        )
    if module == "__main__" or not getattr(sys.modules[module], "__file__", None):
        raise KindError(f"{path!r} has no file that others can import; move it into a module")
    return found


def _is_trusted(path: str) -> bool:
    """Return True if the environment or an entry point of an installed package names the class."""
    named = [one.strip() for one in os.environ.get(TRUST, "").split(",")]
    return path in named or any(
        point.value.replace(" ", "") == path for point in entry_points(group=ENTRY_POINTS)
    )
