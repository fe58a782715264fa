"""The plan of an extraction: its images in shards of 4,096, decided once by the first worker.

`plan.json` and a list of the images are all that a later worker reads, so that no other worker has
to list the source. The number of workers is not part of it.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from a2cap.data.errors import ConfigError, InputError
from a2cap.data.features.parts import failed_in, last_attempts, shard_name
from a2cap.data.features.seal import PLAN
from a2cap.data.files.atomic import fsync
from a2cap.data.sources.source import ImageSource, SourceItem
from a2cap.extract.config import ExtractConfig
from a2cap.extract.record import CODE_VERSION
from a2cap.pipeline.engine.key import digest_of, key_fields
from a2cap.pipeline.extraction.plan.shared_files import SharedFolder, json_bytes

SHARD_SIZE = 4096

_BESIDE_WEIGHTS = {"weights", "depth", "width", "seed"}
"""Fields that the digest of the weights stands for."""


class Plan(BaseModel):
    """The plan as written into `plan.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    images: str
    """Path, pattern or URL of the images."""
    digest: str
    """sha256 of their listing."""
    count: int
    """Number of images."""
    items: str
    """File with a line per image: id, number of its container, name there."""
    offsets: tuple[int, ...]
    """Position of each shard in that file."""
    settings: dict[str, object]
    """Settings and digest of the weights of the extraction."""
    precision: str
    """Precision of all workers, as the first one chose it."""
    size: int = SHARD_SIZE
    """Images per shard."""

    @property
    def fingerprint(self) -> str:
        """Digest of weights and settings."""
        return digest_of(self.settings)

    def tasks(self) -> list[str]:
        """Return the names of all shards."""
        return [shard_name(number) for number in range(len(self.offsets))]


def settings_of(config: ExtractConfig, weights_sha256: str) -> dict[str, object]:
    """Return everything that the features of an image depend on."""
    return {
        **key_fields(config, exclude=_BESIDE_WEIGHTS),
        "precision": config.precision_in_key,
        "weights": weights_sha256,
        "code_version": CODE_VERSION,
    }


def read_plan(folder: Path) -> Plan | None:
    """Return the plan in a folder, None if there is none."""
    try:
        return Plan.model_validate_json((folder / PLAN).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(
            f"plan {str(folder / PLAN)!r} is damaged; remove it, and run the command again"
        ) from error


def make_plan(
    files: SharedFolder,
    source: ImageSource,
    *,
    settings: Mapping[str, object],
    precision: str,
    size: int = SHARD_SIZE,
) -> Plan:
    """Make the plan of a source unless another worker is first; return the plan that counts."""
    items = f"items.{files.worker}.jsonl"
    containers = {one.name: number for number, one in enumerate(source.containers)}
    offsets, count = [], 0
    with (files.root / items).open("wb") as file:
        for item in source.items():
            if count % size == 0:
                offsets.append(file.tell())
            line = [item.image_id, containers[item.container], item.member]
            file.write(f"{json.dumps(line)}\n".encode())
            count += 1
    fsync(files.root / items)
    plan = Plan(
        images=source.text,
        digest=source.digest,
        count=count,
        items=items,
        offsets=tuple(offsets),
        settings=dict(settings),
        precision=precision,
        size=size,
    )
    if files.create(PLAN, json_bytes(plan.model_dump(mode="json"))):
        return plan
    (files.root / items).unlink()
    made = read_plan(files.root)
    if made is None:
        raise InputError(f"plan {str(files.root / PLAN)!r} has disappeared; run the command again")
    return made


def require_settings(plan: Plan, settings: Mapping[str, object], folder: Path) -> None:
    """Raise ConfigError, naming them, if weights or settings are not those of the plan."""
    wrong = [
        f"{name} is {_shown(value)}, in the plan {_shown(plan.settings.get(name))}"
        for name, value in settings.items()
        if value != plan.settings.get(name)
    ]
    if wrong:
        raise ConfigError(
            f"plan {str(folder)!r} was made with other weights or settings: {', '.join(wrong)}; "
            "use those of the plan, or name another folder"
        )


def require_images(plan: Plan, source: ImageSource, folder: Path) -> None:
    """Raise InputError if the source is not that of the plan."""
    # the same name is not listed again: this would take longer than a shard
    if source.text != plan.images and source.digest != plan.digest:
        raise InputError(
            f"plan {str(folder)!r} was made for other images: {source.text!r} has the digest "
            f"{source.digest[:12]}, the {plan.count:,} images of {plan.images!r} "
            f"{plan.digest[:12]}; name those, or another folder"
        )


def read_items(plan: Plan, folder: Path, source: ImageSource, task: str) -> list[SourceItem]:
    """Return the images of a task: of a shard, or those of it that failed in the attempt before."""
    shard, _, attempt = task.partition(".r")
    with (folder / plan.items).open("rb") as file:
        file.seek(plan.offsets[int(shard)])
        lines = [json.loads(line) for line in islice(file, plan.size)]
    names = [container.name for container in source.containers]
    items = [SourceItem(image_id, names[number], member) for image_id, number, member in lines]
    if not attempt:
        return items
    before = int(attempt) - 1
    failed = failed_in(folder, f"{shard}.r{before}" if before else shard)
    return [item for item in items if item.image_id in failed]


def retries(folder: Path) -> list[str]:
    """Return the tasks of the next attempt at the images that failed in the last one."""
    return [
        f"{shard}.r{int(part.partition('.r')[2] or 0) + 1}"
        for shard, part in last_attempts(folder).items()
        if failed_in(folder, part)
    ]


def location_of(images: Path) -> str:
    """Return the name of the images, absolute unless it is a URL: workers may be anywhere."""
    text = str(images)
    return text if ":/" in text else os.path.abspath(text)  # noqa: PTH100  (keeps patterns)


def _shown(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) == hashlib.sha256().digest_size * 2 else text
