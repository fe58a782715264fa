"""Presets of vocabularies: their rules, and on all of COCO their published words."""

import gzip
import hashlib
import json
from collections import Counter
from operator import itemgetter

import pytest

from a2cap.data.annotations.caption import AnnotatedCaption, tokenize
from a2cap.data.annotations.image_rows import AnnotatedImage
from a2cap.data.captions.presets import PRESETS, count_words, tokens_of
from a2cap.data.captions.vocabulary import Vocabulary
from tests.data.coco2014 import FULL_SIZE, SPLITS, official_captions
from tests.data.messages import message_of


def image(split: str, *captions: str) -> AnnotatedImage:
    texts = tuple(AnnotatedCaption(caption, tokenize(caption)) for caption in captions)
    return AnnotatedImage(split, f"{split}.jpg", split, texts)


@pytest.mark.parametrize(
    ("preset", "splits", "kept"),
    [
        ("karpathy", {"train"}, "ab"),
        ("m2", {"train", "val"}, "ab"),
        ("neuraltalk2", {"train", "val", "test"}, "a"),
        ("aoanet", {"train", "val", "test"}, "ab"),
        ("updown", {"train"}, "ab"),
        ("arctic", {"train"}, "abc"),
    ],
)
def test_each_preset_has_its_own_splits_and_minimum_count(preset, splits, kept):
    images = [image(split, split) for split in ("train", "val", "test")]
    assert count_words(images, preset) == Counter(splits)
    counts = {"a": 6, "b": 5, "c": 4}
    assert Vocabulary.from_counts(counts, preset).words[4:] == tuple(kept)
    assert len(Vocabulary.from_counts(counts, preset, min_count=4)) == 7


@pytest.mark.parametrize("preset", PRESETS)
def test_words_are_counted_in_every_caption_or_the_first_five(preset):
    images = [image("train", "A dog.", *["a cat"] * 4, "the end"), image("train", "a")]
    counts = count_words(images, preset)
    assert (counts["a"], counts["dog"], counts["cat"]) == (6, 1, 4)
    assert counts["end"] == (0 if preset in ("m2", "arctic") else 1)


def test_arctic_keeps_the_9998_most_frequent_words():
    counts = {f"w{number:05d}": 20_000 - number for number in range(12_000)}
    assert Vocabulary.from_counts(counts, "arctic").words[4:] == tuple(counts)[:9_998]


@pytest.mark.parametrize("preset", ["karpathy", "neuraltalk2", "aoanet"])
def test_three_presets_use_the_tokens_of_the_file(preset):
    assert tokens_of(AnnotatedCaption("A Dog-like.", ("x", "y")), preset) == ("x", "y")


@pytest.mark.parametrize(
    ("preset", "raw", "tokens"),
    [
        ("m2", "A Dog.", "a dog"),
        ("m2", "a black-and-white dog's bed", "a black and white dog 's bed"),
        ("m2", "It isn't here, they're there!", "it is n't here they 're there"),
        ("m2", "thats cannot Theres its were", "that s can not there s its were"),
        ("m2", "at 10:20 or 6am on a t.v.", "at 10:20 or 6 am on a t.v"),
        ("m2", "5 o'clock and/or a 4-way room/dining", "5 o'clock and/or a 4-way room / dining"),
        ("m2", 'a "stop" sign... & 3/4 (red) k.', 'a " stop " sign & 3/4 ( red ) k.'),
        ("m2", "well -- ok; `x` '' ? .. so..", "well ok x .. so .."),
        ("updown", "It's a T-shirt, ok.", "it ' s a t - shirt , ok"),
        ("updown", 'He said "go!"... the .. end', 'he said " go ! " the .. end'),
        ("arctic", "It's a T-shirt, ok...", "it ' s a t - shirt , ok ..."),
    ],
)
def test_three_presets_split_the_raw_caption(preset, raw, tokens):
    assert tokens_of(AnnotatedCaption(raw, ()), preset) == tuple(tokens.split())


def test_an_unknown_preset_is_rejected():
    expected = (
        "unknown vocabulary preset: 'x'; "
        "use one of aoanet, arctic, karpathy, m2, neuraltalk2, updown"
    )
    assert message_of(count_words, [], "x") == expected
    assert message_of(tokens_of, AnnotatedCaption("", ()), "x") == expected
    assert message_of(Vocabulary.from_counts, {"a": 9}, "x") == expected


PUBLISHED = {
    "karpathy": (9_993, None),  # no list is published
    "neuraltalk2": (9_486, "1c22b6467d989902db812a247bdc67a97c3d94ed2328417dec53a908172839d5"),
    "aoanet": (10_368, None),
    "updown": (10_008, "1e7d06d9b095d74ede67a0804fc6b06373e7e81b569fdc81019595dc2493533c"),
    "arctic": (9_998, None),
    "m2": (10_191, "7979e173f34b672c6d7dd2867f7718edf94b43e1e0cbdd1711f402fbf850b2db"),
}
"""Preset -> number of words on COCO, and sha256 of the sorted published words as a JSON list.

Lists of ruotianluo/ImageCaptioning.pytorch, husthuaan/AoANet (size alone), Up-Down-Captioner,
kelvinxu/arctic-captions (size alone) and aimagelab/meshed-memory-transformer.
"""
WHITE_SPACE_OF_M2 = {"\n", "\n ", " ", "  ", "   ", "    "}


def images_of_coco(folder):
    """Return all images of COCO 2014 with their captions in the order of ids."""
    held_out = {
        int(number): split
        for split in ("val", "test")
        for number in (SPLITS / f"karpathy_{split}_ids.txt").read_text().split()
    }
    rows = [
        r for file in official_captions(folder) for r in json.loads(file.read_text())["annotations"]
    ]
    captions = {}
    for row in sorted(rows, key=itemgetter("id")):
        captions.setdefault(row["image_id"], []).append(row["caption"])
    return [image(held_out.get(number, "train"), *texts) for number, texts in captions.items()]


class TestOnAllCaptions:
    pytestmark = FULL_SIZE

    def test_each_preset_gives_its_published_words(self, tmp_path):
        # not by read_annotations, which test_karpathy_writer.py compares with published words
        images = images_of_coco(tmp_path)
        for preset, (size, sha256) in PUBLISHED.items():
            counts = count_words(images, preset)
            words = Vocabulary.from_counts(counts, preset).words[4:]
            assert len(words) == size
            listed = sorted({*words, *(WHITE_SPACE_OF_M2 if preset == "m2" else ())})
            digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
            assert sha256 in (None, digest), preset
        # the last: of M2, the counts are published too
        path = SPLITS.parent / "text/coco_train_word_counts_m2.json.gz"
        published = json.loads(gzip.decompress(path.read_bytes()))
        differences = {
            counts[word] - published.get(word, 0)
            for word in counts.keys() | published.keys()
            if not word.isspace()
        }
        assert differences == {-1, 0, 1}
