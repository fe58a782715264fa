"""Archive for COCO's caption evaluation server: both results files in one zip.

The server (Chen et al. 2015, arXiv:1504.00325) expects captions_val2014_NAME_results.json and
captions_test2014_NAME_results.json at the top of the archive, with exactly one caption for each
image of the two sets. It hardly explains a rejection, so everything is checked here.
"""

import io
import json
import logging
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from a2cap.data.annotations.json_items import BadItem, list_member, member
from a2cap.data.errors import ConfigError, InputError
from a2cap.data.files.atomic import write_durably
from a2cap.data.files.json_file import read_json
from a2cap.data.image_ids import image_id, sample_ids
from a2cap.pipeline.evaluation.results import results_entries

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")
_SET_IN_FILE_NAME = re.compile(r"COCO_(\w+)_[0-9]+\.\w+")


VAL, TEST = "val2014", "test2014"

_OFFICIAL_COUNTS = {VAL: 40_504, TEST: 40_775}
"""Number of images that the server scores, by set."""


def check_name(name: str) -> None:
    """Raise ConfigError unless the file names in the archive can contain `name`."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name cannot be part of the server's file names: {name!r}; use up to 50 of "
            "A-Z a-z 0-9 - _, a letter or digit first"
        )


def check_output(path: Path, *, force: bool) -> None:
    """Raise ConfigError if the archive cannot be written to `path`; `force` permits replacing."""
    if path.suffix != ".zip" or path.is_dir():
        raise ConfigError(f"--output is not a zip file: {str(path)!r}; end its name in .zip")
    if not path.parent.is_dir():
        raise ConfigError(f"folder of --output not found: {str(path.parent)!r}; create it first")
    if path.exists() and not force:
        raise ConfigError(f"{str(path)!r} already exists; name another file, or use --force")


def read_image_info(val: Path, test: Path) -> dict[str, list[str]]:
    """Return the sorted image ids of both sets, from image_info_*.json or captions_*.json files.

    Raises InputError for another layout, for images of another set, and for images in both files.
    Logs a warning if the number of images is not the server's.
    """
    sets = {VAL: _read_ids(val, VAL), TEST: _read_ids(test, TEST)}
    shared = sorted(set(sets[VAL]) & set(sets[TEST]))
    if shared:
        raise InputError(
            f"{len(shared):,} images are in both {str(val)!r} and {str(test)!r}: "
            f"{sample_ids(shared)}; name the info files of val2014 and test2014"
        )
    return sets


def check_captions(captions: Mapping[str, str], ids: list[str], name: str) -> None:
    """Raise InputError unless exactly the images of the set have a caption that is not empty."""
    known = set(ids)
    if unknown := [identity for identity in captions if identity not in known]:
        raise InputError(
            f"{len(unknown):,} of {len(captions):,} captions are of images that are not in {name}: "
            f"{sample_ids(unknown)}; name the results of {name}"
        )
    if missing := [identity for identity in ids if identity not in captions]:
        raise InputError(
            f"{len(missing):,} of {len(ids):,} images of {name} have no caption: "
            f"{sample_ids(missing)}; caption them, the server rejects partial results"
        )
    if empty := [identity for identity, caption in captions.items() if not caption.strip()]:
        raise InputError(
            f"{len(empty):,} of {len(ids):,} captions of {name} are empty: {sample_ids(empty)}; "
            "give each at least one word"
        )


def write_submission(
    path: Path, name: str, captions: Mapping[str, Mapping[str, str]], ids: Mapping[str, list[str]]
) -> None:
    """Check the captions and write the archive atomically.

    Equal captions give equal bytes for one version of zlib. Raises InputError as `check_captions`.
    """
    for part, found in captions.items():
        check_captions(found, ids[part], part)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for part, found in captions.items():
            # A fixed time, mode and system (Unix) make the bytes reproducible.
            file_name = f"captions_{part}_{name}_results.json"
            entry = zipfile.ZipInfo(file_name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr, entry.create_system = 0o100644 << 16, 3
            archive.writestr(entry, json.dumps(results_entries(found)))
    write_durably(path, content.getvalue())


def _read_ids(path: Path, name: str) -> list[str]:
    ids: dict[str, None] = {}
    where = "the file"
    try:
        for index, item in enumerate(list_member(read_json(path), "images")):
            where = f"images[{index}]"
            identity = _id(item, name)
            if identity in ids:
                raise BadItem(f"duplicate image {identity}")
            ids[identity] = None
    except BadItem as error:
        raise InputError(
            f"no image info of {name} in {str(path)!r}: {where}: {error}; "
            "give image_info_test2014.json or captions_val2014.json as downloaded"
        ) from error
    if len(ids) != _OFFICIAL_COUNTS[name]:
        logger.warning(
            "%s has %s images, the server's %s has %s; the server will reject this archive",
            path,
            f"{len(ids):,}",
            name,
            f"{_OFFICIAL_COUNTS[name]:,}",
        )
    return sorted(ids)


def _id(item: object, wanted: str) -> str:
    number = member(item, "id")
    # In Python, True is an int.
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 10**12:
        raise BadItem(f"'id' is not a number of up to 12 digits: {number!r:.40}")
    name = item.get("file_name") if isinstance(item, dict) else None
    found = _SET_IN_FILE_NAME.fullmatch(name) if isinstance(name, str) else None
    if found and found[1] != wanted:
        raise BadItem(f"{name!r} is an image of {found[1]}")
    return image_id(f"{number}.jpg")
