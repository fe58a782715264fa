"""METEOR equals the jar that pycocoevalcap runs, in all counts of each caption."""

import hashlib
import json
import random
import subprocess

import numpy as np
import pytest

from a2cap.pipeline.metrics.meteor.meteor import _best_rows, meteor_statistics, meteor_values
from a2cap.pipeline.metrics.pycocoevalcap import METEOR, metric_file
from a2cap.pipeline.runtime.java import find_java
from tests.pipeline.metrics.captions import CANDIDATES, REFERENCES

SENTENCES = [
    *CANDIDATES,
    *(reference for group in REFERENCES for reference in group),
    "a man and a woman and a dog on a bench on a street",
    "on a street a woman and a man sit on a bench with a dog",
    "the children are playing in front of the big house",
    "kids play before a large building",
    "u.s. army m & m 's t-shirt o'clock ... 1,000 10:30 etc. no. 5 - -- 'tis",
    "a couple of people are walking down the road in the rain",
    "several persons walk along a wet street while it rains",
]


def random_pairs(count: int) -> tuple[list[str], list[list[str]]]:
    """Return shuffled and repeated words, many of which match in several ways."""
    generator = random.Random(0)
    words = " ".join(SENTENCES).split()

    def sentence(vocabulary: list[str]) -> str:
        return " ".join(generator.choices(vocabulary, k=generator.randint(0, 30)))

    vocabularies = [generator.sample(words, 12) for _ in range(count)]
    return [sentence(v) for v in vocabularies], [[sentence(v), sentence(v)] for v in vocabularies]


def asked(candidates: list[str], references: list[list[str]]) -> list[list[float]]:
    """Return the counts that the jar prints."""
    lines = [
        " ||| ".join(["SCORE", *group, caption]) + "\n"
        for caption, group in zip(candidates, references, strict=True)
    ]
    command = [str(find_java()), "-Xmx2G", "-Dfile.encoding=UTF-8"]
    answer = subprocess.run(
        [*command, "-jar", str(metric_file(METEOR)), "-", "-", "-stdio", "-l", "en", "-norm"],
        input="".join(lines),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return [[float(number) for number in line.split()] for line in answer.stdout.splitlines()]


@pytest.mark.slow
def test_counts_equal_those_of_the_jar(java_on_path):
    candidates, references = random_pairs(500)
    candidates += [sentence for sentence in SENTENCES for _ in SENTENCES]
    references += [[other] for _ in SENTENCES for other in SENTENCES]
    assert list(_best_rows(candidates, references)) == asked(candidates, references)


@pytest.mark.slow
def test_counts_of_random_captions_are_those_of_the_jar():
    rows = list(_best_rows(*random_pairs(500)))  # equal in the test above
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == "bb3fbd6c3b704b24"


def test_progress_counts_the_captions():
    progress: list[int] = []
    rows = meteor_statistics(CANDIDATES, REFERENCES, advance=progress.append)
    assert rows.shape == (len(CANDIDATES), 23)
    assert progress == [len(CANDIDATES)]


def test_a_caption_without_a_match_scores_zero():
    rows = np.zeros((2, 23))
    rows[0, :4] = 4, 5, 2, 2
    assert meteor_values(rows).tolist() == [0, 0]
    assert meteor_values(meteor_statistics(["cats", ""], [["a dog"], ["a dog"]])).tolist() == [0, 0]


def test_a_caption_equal_to_its_reference_scores_one():
    [row] = meteor_statistics(["a dog in the snow"], [["a dog in the snow"]])
    assert row[20] == 0
    assert meteor_values(row) == pytest.approx(1)


def test_a_separator_in_a_caption_is_removed():
    first, second = meteor_statistics(["a ||| dog", "a  dog"], [["a|||dog"], ["adog"]])
    assert first[:2].tolist() == [2, 1]
    assert second[:2].tolist() == [2, 1]
