"""Data of photographs: mirror images, and captions of similar images.

COCO has 616,767 captions; of its photographs only 5,697 can be had without a download. Captions of
other images that say nearly what the five of a photograph say are further captions of it: the
decoder learns COCO's language without the images behind the text. Those are kept on which the five
agree.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import Tensor

from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.annotations.read import read_all
from a2cap.data.annotations.record import Fields
from a2cap.data.files.atomic import replacing
from a2cap.data.files.json_file import write_json
from a2cap.pipeline.engine.progress import track
from a2cap.pipeline.metrics.cider import CorpusFrequencies, cider_values
from a2cap.pipeline.metrics.ngrams import count_pairs
from a2cap.pipeline.metrics.pycocoevalcap import coco_captions

_WORD = re.compile(r"[a-z0-9']+")
_MIRRORED_WORDS = {"left": "right", "right": "left"}
_MOST_TERMS = 16_000
_CHUNK = 8192  # captions compared at once
_QUALITY = 92
_CANDIDATES = 40  # captions found for each photograph, before its own are left out


@dataclass(frozen=True)
class Photo:
    """A photograph, its file below the image folder, its split and the words of its captions."""

    file: Path
    split: str
    captions: list[list[str]]

    @property
    def number(self) -> int:
        """COCO's id."""
        return int(self.file.stem[-12:])

    def mirrored(self) -> "Photo":
        """Return the mirror image; its captions have left and right exchanged."""
        words = [[_MIRRORED_WORDS.get(word, word) for word in caption] for caption in self.captions]
        return Photo(Path("mirrored", f"mirrored_{self.file.name}"), self.split, words)


def words_of(caption: str) -> list[str]:
    """Return the words of a caption in lower case."""
    return _WORD.findall(caption.lower())


def read_rows(table: Path) -> tuple[AnnotatedImage, ...]:
    """Read captions.csv with the columns image, caption and perhaps split, as a2 does."""
    return tuple(read_all(table, Fields()).images)


def read_photos(table: Path) -> list[Photo]:
    """Read the photographs of captions.csv."""
    return [
        Photo(Path(row.file), row.split, [words_of(caption.raw) for caption in row.captions])
        for row in read_rows(table)
    ]


def read_texts(*, without: Collection[int]) -> dict[str, int]:
    """Return the captions of COCO 2014 in pycocoevalcap with the image of each.

    Leaves out images by id, captions that another image has too, and very short and long ones.
    """
    image_of: dict[str, int] = {}
    for part in ("train", "val"):
        for image, captions in coco_captions(part).items():
            for words in map(words_of, captions):
                if image not in without and 6 <= len(words) <= 18:
                    image_of.setdefault(" ".join(words), image)
    return image_of


def write_images(photos: Iterable[Photo], source: Path, target: Path) -> None:
    """Link the folders of images into `target`, and write mirror images of those of training."""
    target.mkdir(parents=True, exist_ok=True)
    for folder in sorted({photo.file.parts[0] for photo in photos}):
        if not (target / folder).exists():
            (target / folder).symlink_to((source / folder).resolve(), target_is_directory=True)
    training = [photo for photo in photos if photo.split == "train"]
    with track("mirror", total=len(training)) as progress:
        for photo in training:
            mirror = target / photo.mirrored().file
            if not mirror.exists():
                mirror.parent.mkdir(parents=True, exist_ok=True)
                image = Image.open(source / photo.file).convert("RGB")
                ImageOps.mirror(image).save(mirror, quality=_QUALITY)
            progress.advance(1)


def write_annotations(
    path: Path,
    photos: Iterable[Photo],
    captions: Mapping[Path, list[list[str]]],
    *,
    dataset: str,
) -> None:
    """Write Karpathy's layout: each photograph, and the mirror image of each of training.

    captions: of training photographs by file, in place of their own. dataset: its name, which a
    captioner states.
    """
    images = list[Photo]()
    for photo in photos:
        photograph = replace(photo, captions=captions.get(photo.file, photo.captions))
        images += [photograph, photograph.mirrored()] if photo.split == "train" else [photograph]
    with replacing(path) as partial:
        write_json(partial, {"dataset": dataset, "images": list(map(karpathy_item, images))})


def karpathy_item(photo: Photo) -> dict[str, object]:
    """Return the entry of a photograph in Karpathy's layout."""
    return {
        "filepath": photo.file.parent.as_posix(),
        "filename": photo.file.name,
        "split": photo.split,
        "sentences": [{"raw": " ".join(words), "tokens": words} for words in photo.captions],
    }


def agreeing_captions(
    photos: Sequence[Photo], similar: Mapping[Path, list[list[str]]], *, most: int
) -> dict[Path, list[list[str]]]:
    """Return for each photograph the captions, its own and similar ones, that agree most with it.

    A caption agrees by its CIDEr-D with the photograph's own captions, a caption of its own with
    the others (the weights of Phan et al. 2017, arXiv:1712.09532, as a choice). most: captions
    per photograph.
    """
    captions = [[" ".join(words) for words in photo.captions] for photo in photos]
    candidates = [
        lines + [" ".join(words) for words in similar[photo.file]]
        for photo, lines in zip(photos, captions, strict=True)
    ]
    frequencies = CorpusFrequencies.count(captions)
    values = [[0.0] * len(lines) for lines in candidates]
    for number in range(max(map(len, candidates))):
        rows = [row for row, lines in enumerate(candidates) if number < len(lines)]
        references = [captions[row][:number] + captions[row][number + 1 :] for row in rows]
        pairs = count_pairs([candidates[row][number] for row in rows], references)
        for row, value in zip(rows, cider_values(pairs, frequencies).tolist(), strict=True):
            values[row][number] = value
    kept: dict[Path, list[list[str]]] = {}
    for photo, lines, agreement in zip(photos, candidates, values, strict=True):
        best = sorted(range(len(lines)), key=agreement.__getitem__, reverse=True)[:most]
        kept[photo.file] = [lines[number].split() for number in sorted(best)]
    return kept


def similar_captions(
    photos: Iterable[Photo], texts: Mapping[str, int], *, least: float, most: int
) -> dict[Path, list[list[str]]]:
    """Return for each photograph the texts that are most similar to its captions.

    Similarity is the mean cosine of tf-idf vectors of words and pairs of words; least: similarity
    below which a text is not taken; most: texts per photograph.
    """
    photos, lines = list(photos), list(texts)
    grams = [Counter(_grams(line.split())) for line in lines]
    frequencies: Counter[str] = Counter()
    for counts in grams:
        frequencies.update(counts.keys())
    idf = {term: math.log(len(lines) / count) for term, count in frequencies.items()}
    terms = _terms(photos, frequencies, texts=len(lines))
    queries = _queries(photos, terms, idf, texts=len(lines))
    scores = torch.full((len(photos), _CANDIDATES), -1.0)
    rows = torch.zeros(len(photos), _CANDIDATES, dtype=torch.int64)
    with track("compare captions", total=len(lines)) as progress:
        for start in range(0, len(lines), _CHUNK):
            chunk = grams[start : start + _CHUNK]
            near = (_sparse(chunk, terms, idf) @ queries).T.topk(min(_CANDIDATES, len(chunk)))
            both = torch.cat((scores, near.values), 1), torch.cat((rows, near.indices + start), 1)
            scores, order = both[0].topk(_CANDIDATES, dim=1)
            rows = both[1].gather(1, order)
            progress.advance(len(chunk))
    kept: dict[Path, list[list[str]]] = {}
    for photo, values, numbers in zip(photos, scores.tolist(), rows.tolist(), strict=True):
        captions = {" ".join(words) for words in photo.captions}
        other = (
            lines[number]
            for value, number in zip(values, numbers, strict=True)
            if value >= least
            and texts[lines[number]] != photo.number
            and lines[number] not in captions
        )
        kept[photo.file] = [line.split() for line in list(other)[:most]]
    return kept


def _grams(words: list[str]) -> Iterator[str]:
    yield from words
    yield from (f"{word} {next_word}" for word, next_word in pairwise(words))


def _terms(photos: Iterable[Photo], frequencies: Counter[str], *, texts: int) -> dict[str, int]:
    """Return the terms that photographs share with the texts, frequent ones first."""
    used: Counter[str] = Counter()
    for photo in photos:
        used.update({gram for words in photo.captions for gram in _grams(words)})
    shared = [
        term
        for term, count in used.most_common()
        if count >= 2 and 2 <= frequencies[term] < 0.3 * texts
    ]
    return {term: number for number, term in enumerate(shared[:_MOST_TERMS])}


def _weights(
    counts: Counter[str], terms: Mapping[str, int], idf: Mapping[str, float], rarest: float
) -> dict[int, float]:
    """Return the normalised tf-idf of the known terms of a caption."""
    weights = {term: count * idf.get(term, rarest) for term, count in counts.items()}
    norm = math.sqrt(sum(weight**2 for weight in weights.values())) or 1.0
    return {terms[term]: weight / norm for term, weight in weights.items() if term in terms}


def _queries(
    photos: list[Photo], terms: Mapping[str, int], idf: Mapping[str, float], *, texts: int
) -> Tensor:
    """Return the mean vector of each photograph's captions, (terms, photographs)."""
    queries = torch.zeros(len(terms), len(photos))
    for column, photo in enumerate(photos):
        for words in photo.captions:
            counts = Counter(_grams(words))
            for row, weight in _weights(counts, terms, idf, math.log(texts)).items():
                queries[row, column] += weight / len(photo.captions)
    return queries


def _sparse(
    chunk: list[Counter[str]], terms: Mapping[str, int], idf: Mapping[str, float]
) -> Tensor:
    """Return the vectors of texts, (texts, terms)."""
    rows, columns, values = list[int](), list[int](), list[float]()
    for row, counts in enumerate(chunk):
        weights = _weights(counts, terms, idf, 0.0)
        rows += [row] * len(weights)
        columns += weights.keys()
        values += weights.values()
    size = (len(chunk), len(terms))
    return torch.sparse_coo_tensor(
        torch.tensor([rows, columns]), torch.tensor(values), size, check_invariants=True
    )
