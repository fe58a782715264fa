"""A world of COCO's text: regions simulated from the words of the captions of 2014.

Vocabulary, grammar and context are real; features are simulated. Each object that an image's
captions name becomes as many regions as they count: the vector of its noun, plus half the vectors
of its adjectives, plus noise. Distractors are objects of other images that share a noun, so that
they are as likely beside it as in COCO. Every region has a cell of the image of its own, and
instances.json names it. grounding.json and words.json have the form of those of generated scenes: a
noun, its adjectives and its count refer to the regions of the noun; no word refers to a distractor.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from a2cap.data.annotations.read import read_annotations
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.files.yaml_file import read_yaml
from a2cap.data.regions import Regions
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.metrics.word_pairs import plurals
from benchmarks.preprocess import write_annotations

WORDS: Mapping[str, Any] = read_yaml(Path(__file__).with_name("coco_words.yaml"))
NOUNS = {noun: index for index, noun in enumerate(WORDS["nouns"])}
ADJECTIVES = {adjective: index for index, adjective in enumerate(WORDS["adjectives"])}
COUNTS: Mapping[str, int] = WORDS["counts"]

NOUN_OF: Mapping[str, str] = {
    **{form: noun for noun in NOUNS for form in plurals(noun)},
    **WORDS["irregular_plurals"],
    **{noun: noun for noun in NOUNS},
}
"""Word, singular or plural -> its noun."""

WORD_GROUPS = {
    "nouns": list(NOUN_OF),
    "adjectives": [word for word in ADJECTIVES if word not in NOUN_OF],
    "counts": [word for word in COUNTS if word not in {*NOUN_OF, "a", "an"}],
}
"""Words that refer to regions, each in one group."""

COLUMNS, CELL = 6, 64
"""Cells per row of an image, and pixels per side of a cell."""

MAX_REGIONS = COLUMNS**2
SKIPPED_WORDS = frozenset({"of", "the"})
"""Words between a count and its noun, as in "a group of people"."""


@dataclass
class Described:
    """Objects of one noun as the captions of an image describe them."""

    count: int = 1
    adjectives: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Codes:
    """Vectors of the words, (words, F) float64; noise: its standard deviation per number."""

    nouns: NDArray[np.float64]
    adjectives: NDArray[np.float64]
    noise: float

    @classmethod
    def create(cls, width: int, noise: float, rng: np.random.Generator) -> "Codes":
        """Draw standard normal numbers, half as large for adjectives."""
        nouns = rng.standard_normal((len(NOUNS), width))
        adjectives = rng.standard_normal((len(ADJECTIVES), width)) / 2
        return cls(nouns, adjectives, noise)

    def of(
        self, noun: str, adjectives: Iterable[str], rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return the vector of one region, (F,) float64."""
        vector = self.nouns[NOUNS[noun]].copy()
        for adjective in sorted(adjectives):
            vector += self.adjectives[ADJECTIVES[adjective]]
        return np.asarray(vector + self.noise * rng.standard_normal(len(vector)))


def phrases_in(words: Sequence[str]) -> Iterator[tuple[str, Described, list[int]]]:
    """Yield the nouns of a caption as it describes them, and the positions of their words."""
    for position, word in enumerate(words):
        if word not in NOUN_OF:
            continue
        noun, positions = NOUN_OF[word], [position]
        described = Described(1 if word == noun else 2)
        for before in range(position - 1, -1, -1):
            if words[before] in ADJECTIVES:
                described.adjectives.add(words[before])
            elif words[before] in COUNTS:
                if word != noun:
                    described.count = max(described.count, COUNTS[words[before]])
            elif words[before] in SKIPPED_WORDS:
                continue
            else:
                break
            positions.append(before)
        yield noun, described, positions


def objects_in(captions: Iterable[Sequence[str]]) -> dict[str, Described]:
    """Return the objects that captions name, with the greatest count and all their adjectives."""
    found: dict[str, Described] = {}
    for words in captions:
        for noun, described, _ in phrases_in(words):
            known = found.setdefault(noun, Described())
            known.count = max(known.count, described.count)
            known.adjectives |= described.adjectives
    return found


def grounded(words: Sequence[str], regions: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Return the words of a caption with the indices of their regions, given as nouns."""
    found: list[set[int]] = [set() for _ in words]
    for noun, _, positions in phrases_in(words):
        for position in positions:
            found[position].update(i for i, other in enumerate(regions) if other == noun)
    return list(zip(words, map(sorted, found), strict=True))


def regions_of(
    own: Mapping[str, Described],
    distractors: Sequence[tuple[str, Described]],
    codes: Codes,
    rng: np.random.Generator,
) -> tuple[list[str], Regions]:
    """Return the nouns of an image's regions and the regions, in random order.

    Objects fill all cells but those of the distractors; an image has at least one region.
    """
    named = [(noun, described) for noun, described in own.items() for _ in range(described.count)]
    named = [*named[: MAX_REGIONS - len(distractors)], *distractors]
    named = [named[i] for i in rng.permutation(len(named))]
    cells = rng.permutation(MAX_REGIONS)[: len(named)]
    corners = np.stack([cells % COLUMNS, cells // COLUMNS], axis=1) * CELL
    boxes = np.concatenate([corners, corners + CELL], axis=1).astype(np.float32)
    vectors = [codes.of(noun, described.adjectives, rng) for noun, described in named]
    regions = Regions(
        boxes=boxes,
        features=np.stack(vectors).astype(np.float16),
        scores=rng.uniform(0.3, 1, len(named)).astype(np.float32),
        class_ids=np.array([NOUNS[noun] for noun, _ in named], np.int32),
        attribute_ids=None,
        width=COLUMNS * CELL,
        height=COLUMNS * CELL,
    )
    return [noun for noun, _ in named], regions


def draw_distractors(
    index: int,
    objects: Sequence[Mapping[str, Described]],
    images_with: Mapping[str, Sequence[int]],
    rng: np.random.Generator,
    *,
    most: int,
) -> list[tuple[str, Described]]:
    """Draw 1 to `most` objects of images that share a noun with this one, which it lacks."""
    own = sorted(objects[index]) or list(NOUNS)
    found: list[tuple[str, Described]] = []
    wanted = int(rng.integers(1, most + 1))
    for _ in range(20 * wanted):  # not every image with the same noun has something else
        shared = images_with.get(own[int(rng.integers(len(own)))], ())
        other = objects[shared[int(rng.integers(len(shared)))]] if shared else {}
        new = sorted(other.keys() - objects[index].keys() - {noun for noun, _ in found})
        if new:
            noun = new[int(rng.integers(len(new)))]
            found.append((noun, other[noun]))
        if len(found) == wanted:
            break
    return found or [(list(NOUNS)[int(rng.integers(len(NOUNS)))], Described())]


def write_world(
    folder: Path,
    *,
    count: int | None,
    width: int = 256,
    noise: float = 0.5,
    distractors: int = 6,
    seed: int = 0,
) -> dict[str, float]:
    """Write the files of the world into a new folder; return figures of the world.

    width: numbers per region; noise: its standard deviation, where that of a noun is 1;
    distractors: most per image.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images = read_annotations(write_annotations(folder, count=count)).images
    objects = [objects_in(caption.tokens for caption in image.captions) for image in images]
    images_with = defaultdict(list)
    for index, named in enumerate(objects):
        for noun in named:
            images_with[noun].append(index)
    codes = Codes.create(width, noise, np.random.default_rng(seed))
    listed, boxes, grounding = [], [], {}
    title = track("write regions", total=len(images))
    with title as progress, FeatureWriter(folder / "features.lmdb", commit_every=4096) as writer:
        for index, image in enumerate(images):
            rng = np.random.default_rng((seed, index))
            drawn = draw_distractors(index, objects, images_with, rng, most=distractors)
            nouns, regions = regions_of(objects[index], drawn, codes, rng)
            writer.add(image.image_id, regions)
            grounding[image.image_id] = [grounded(one.tokens, nouns) for one in image.captions]
            listed.append({"id": index + 1, "file_name": image.file})
            for noun, (x1, y1, x2, y2) in zip(nouns, regions.boxes.tolist(), strict=True):
                boxes.append((index + 1, noun, [x1, y1, x2 - x1, y2 - y1]))
            progress.advance(1)
        writer.seal()
    categories = [{"id": number, "name": noun} for number, noun in enumerate(NOUNS, start=1)]
    annotations = [
        {"id": n, "image_id": image, "category_id": NOUNS[noun] + 1, "bbox": box}
        for n, (image, noun, box) in enumerate(boxes, start=1)
    ]
    contents = {
        "instances": {"images": listed, "annotations": annotations, "categories": categories},
        "grounding": grounding,
        "words": WORD_GROUPS,
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return {
        "images": len(images),
        "images without a known noun": sum(not named for named in objects),
        "regions per image": round(len(boxes) / len(images), 1),
        "named objects per image": round(sum(map(len, objects)) / len(images), 1),
    }


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=False))
@click.option("--images", type=int, help="First images of val2014 alone.  [default: all]")
def main(folder: Path, images: int | None) -> None:
    """Write the world into FOLDER and print the command that runs the stages on it."""
    for name, value in write_world(folder, count=images).items():
        click.echo(f"{name:<28} {value:,}")
    files = {"features": "features.lmdb", "annotations": "dataset_coco.json"}
    files["instances"] = "instances.json"
    options = " ".join(f"--set data.{key}={folder / name}" for key, name in files.items())
    click.echo(f"a2 run -c a2-from-features {options} --set scst.epochs=0")


if __name__ == "__main__":
    main()
