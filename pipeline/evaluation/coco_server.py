"""The archive that COCO's caption evaluation server takes: both results files in one zip.

The server (Chen et al. 2015, arXiv:1504.00325) wants captions_val2014_NAME_results.json and
captions_test2014_NAME_results.json at the top of the archive, with exactly one caption for each
image of the two sets, and says little about what it refuses. So all of it is checked here.
"""

import io
import json
import logging
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from a2cap.data.annotations.json_items import BadItem, list_member, member
from a2cap.data.errors import ConfigError, InputError
from a2cap.data.files.atomic import write_durably
from a2cap.data.files.json_file import read_json
from a2cap.data.image_ids import image_id, results_id, sample_ids
from a2cap.pipeline.evaluation.config import EvaluateConfig
from a2cap.pipeline.evaluation.results import read_results
from a2cap.pipeline.runtime.config import RuntimeConfig

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}")

_SET_OF_FILE = re.compile(r"COCO_(\w+)_[0-9]+\.\w+")

_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The time of each file in the archive, zip's earliest: equal captions then give equal bytes."""

_PLAIN_FILE = 0o100644 << 16

_UNIX = 3


@dataclass(frozen=True)
class ServerSet:
    """A set of images that the server scores, and how many images it has."""

    name: str
    official_count: int


VAL, TEST = ServerSet("val2014", 40_504), ServerSet("test2014", 40_775)


def check_name(name: str) -> None:
    """ConfigError unless NAME can stand in the names of the files."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"name cannot be part of the server's file names: {name!r}; use up to 50 of "
            "A-Z a-z 0-9 - _, a letter or digit first"
        )


def check_place(path: Path, *, force: bool) -> None:
    """ConfigError where the archive cannot be written to `path`; an older one goes by force."""
    if path.suffix != ".zip" or path.is_dir():
        raise ConfigError(f"--output names no zip file: {str(path)!r}; end it in .zip")
    if not path.parent.is_dir():
        raise ConfigError(f"folder of --output not found: {str(path.parent)!r}; make it first")
    if path.exists() and not force:
        raise ConfigError(f"{str(path)!r} is there already; name another file, or use --force")


def read_info(val: Path, test: Path) -> dict[ServerSet, list[str]]:
    """The ids of both sets, in order, from image_info_*.json or captions_*.json files.

    Raises InputError where one is no such file, names the images of the other set, or names a
    image that is in both. Warns where the number of images is not the server's.
    """
    sets = {VAL: _ids(val, VAL), TEST: _ids(test, TEST)}
    shared = sorted(set(sets[VAL]) & set(sets[TEST]))
    if shared:
        raise InputError(
            f"{len(shared):,} images stand in both {str(val)!r} and {str(test)!r}: "
            f"{sample_ids(shared)}; name the info files of val2014 and test2014"
        )
    return sets


def check_captions(captions: Mapping[str, str], ids: list[str], of: ServerSet) -> None:
    """InputError unless every image of the set has one caption with words, and no other has."""
    known = set(ids)
    unknown = [identity for identity in captions if identity not in known]
    if unknown:
        raise InputError(
            f"{len(unknown):,} of {len(captions):,} captions are of no image of {of.name}: "
            f"{sample_ids(unknown)}; name the results of {of.name}"
        )
    missing = [identity for identity in ids if identity not in captions]
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(ids):,} images of {of.name} have no caption: "
            f"{sample_ids(missing)}; caption them, since the server takes all or none"
        )
    empty = [identity for identity, caption in captions.items() if not caption.strip()]
    if empty:
        raise InputError(
            f"{len(empty):,} of {len(ids):,} captions of {of.name} are empty: {sample_ids(empty)}; "
            "give each at least a word"
        )


def read_captions(val: Path, test: Path) -> dict[ServerSet, dict[str, str]]:
    """The captions of both results files; InputError as `read_results` raises it."""
    return {VAL: read_results(val), TEST: read_results(test)}


def make_captions(
    models: Sequence[Path],
    stores: Sequence[Path],
    ids: Mapping[ServerSet, list[str]],
    config: EvaluateConfig,
    runtime: RuntimeConfig,
) -> dict[ServerSet, dict[str, str]]:
    """Captions of both sets by one captioner, or an ensemble, from features in stores.

    Raises StoreError, before a model is loaded, where an image has no features, and InputError
    where the features are not what the captioner learnt from.
    """
    from a2cap.pipeline.captioning.caption_stores import caption_sets

    by_name = caption_sets(models, stores, {of.name: ids[of] for of in ids}, config, runtime)
    return {of: by_name[of.name] for of in ids}


def write_submission(
    path: Path,
    name: str,
    captions: Mapping[ServerSet, Mapping[str, str]],
    ids: Mapping[ServerSet, list[str]],
) -> None:
    """Checks the captions and writes the archive, whole or not at all.

    Equal captions give equal bytes, where zlib has the same version. Raises InputError as
    `check_captions` does.
    """
    for of, said in captions.items():
        check_captions(said, ids[of], of)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for of, said in captions.items():
            entry = zipfile.ZipInfo(f"captions_{of.name}_{name}_results.json", _LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr, entry.create_system = _PLAIN_FILE, _UNIX
            archive.writestr(entry, _results(said))
    write_durably(path, content.getvalue())


def _results(captions: Mapping[str, str]) -> str:
    entries = [{"image_id": results_id(i), "caption": captions[i]} for i in sorted(captions)]
    return json.dumps(entries)


def _ids(path: Path, of: ServerSet) -> list[str]:
    document = read_json(path)
    ids: dict[str, None] = {}
    place = "the file"
    try:
        for index, item in enumerate(list_member(document, "images")):
            place = f"images[{index}]"
            identity = _id(item, of)
            if identity in ids:
                raise BadItem(f"image {identity} stands twice")
            ids[identity] = None
    except BadItem as error:
        raise InputError(
            f"no image info of {of.name} in {str(path)!r}: {place}: {error}; "
            "give image_info_test2014.json, or captions_val2014.json, as it was downloaded"
        ) from error
    if len(ids) != of.official_count:
        logger.warning(
            "%s names %s images, the server's %s has %s: it will not take this archive",
            path,
            f"{len(ids):,}",
            of.name,
            f"{of.official_count:,}",
        )
    return sorted(ids)


def _id(item: object, of: ServerSet) -> str:
    number = member(item, "id")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 10**12:
        raise BadItem(f"'id' is no number of up to 12 digits: {number!r:.40}")
    name = item.get("file_name") if isinstance(item, dict) else None
    found = _SET_OF_FILE.fullmatch(name) if isinstance(name, str) else None
    if found and found[1] != of.name:
        raise BadItem(f"{name!r} is an image of {found[1]}")
    return image_id(f"{number}.jpg")
