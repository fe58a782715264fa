"""COCO results files and references: reading, writing, and layouts that are rejected."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from a2cap.data.annotations.layouts import GIVE_LAYOUT
from a2cap.data.identities import Identities
from a2cap.pipeline.evaluation.references import (
    References,
    read_references,
    require_same_images,
)
from a2cap.pipeline.evaluation.results import read_captions, read_results, write_results
from a2cap.pipeline.metrics.all_metrics import score
from a2cap.pipeline.metrics.tokenization import tokenize
from tests.data.messages import message_of, written

SHARED = Path(__file__).parents[3].parent / "shared"

KARPATHY: dict[str, Any] = {
    "dataset": "coco",
    "images": [
        {
            "filename": f"COCO_val2014_{number:012d}.jpg",
            "filepath": "val2014",
            "split": split,
            "sentences": [{"raw": "A dog.", "tokens": ["a", "dog"]}],
        }
        for number, split in [(42, "test"), (7, "train")]
    ],
}
COCO: dict[str, Any] = {
    "images": [{"id": 42, "file_name": "COCO_val2014_000000000042.jpg"}, {"id": 7}],
    "annotations": [
        {"image_id": 42, "id": 1, "caption": "A dog."},
        {"image_id": 7, "id": 2, "caption": "A cat."},
        {"image_id": 42, "id": 3, "caption": "A dog runs."},
    ],
}


def references_of(ids, own_ids=None):
    """References of images without any, which captions are linked with."""
    return References({identity: [] for identity in ids}, own_ids or {}, {})


def test_results_are_keyed_by_image_id(tmp_path):
    entries = [
        {"image_id": 391895, "caption": "a man"},
        {"image_id": "42", "caption": "a dog"},
        {"image_id": "COCO_val2014_000000000007", "caption": "a cat"},
        {"image_id": "trip/photo.v2", "caption": "a boat"},
    ]
    assert read_results(written(tmp_path, entries)) == {
        "000000391895": "a man",
        "000000000042": "a dog",
        "000000000007": "a cat",
        "trip/photo.v2": "a boat",
    }
    contents = {
        "x.jsonl": '{"image_id": 1, "caption": "a\u2028b"}\r\n{"image_id": 2, "caption": "c"}\n',
        "x.json": {"1": "a\u2028b", "2": "c"},
        "y.json": [{"images": [f"{n}.jpg"], "text": t} for n, t in ((1, "a\u2028b"), (2, "c"))],
        "x.csv": "image_id,caption\n1.jpg,a\u2028b\nCOCO_val2014_000000000002.jpg,c\n",
    }
    for name, content in contents.items():
        captions = read_results(written(tmp_path, content, name))
        assert captions == {"000000000001": "a\u2028b", "000000000002": "c"}
    listed = read_captions(written(tmp_path, "a\u2028b\nc\n", "x.txt"), references_of("pq"))
    assert listed.captions == {"p": "a\u2028b", "q": "c"}
    deep = written(tmp_path, "[" * 100_000, "x.jsonl")
    assert message_of(read_results, deep).startswith(f"not JSON: {str(deep)!r} (")


def test_lines_of_a2_caption_are_keyed_by_the_end_of_their_path(tmp_path):
    paths = ["/data/pets/dog.jpg", "../pets/cat.png", "COCO_val2014_000000000042.jpg", "x/boat.jpg"]
    lines = [json.dumps({"image": path, "model": "photos", "caption": path}) for path in paths]
    known = ["dog", "pets/dog", "pets/cat", "000000000042"]
    results = read_captions(written(tmp_path, "\n".join(lines), "x.jsonl"), references_of(known))
    assert list(results.captions) == ["pets/dog", "pets/cat", "000000000042", "x/boat"]
    assert list(results.keys.values()) == paths


def test_results_are_written_in_id_order_with_integers_for_decimal_ids(tmp_path):
    captions = {"trip/photo.v2": "Ein Hündchen", "000000000042": "a dog", "000000000007": "a cat"}
    file, second = tmp_path / "one.json", tmp_path / "other.json"
    write_results(file, captions)
    write_results(second, dict(reversed(captions.items())))
    assert file.read_bytes() == second.read_bytes()
    assert [entry["image_id"] for entry in json.loads(file.read_text())] == [7, 42, "trip/photo.v2"]
    assert read_results(file) == captions


def test_gzipped_files_are_read(tmp_path):
    for name, content in (("r.json.gz", [{"image_id": 1, "caption": "a"}]), ("g.json.gz", COCO)):
        (tmp_path / name).write_bytes(gzip.compress(json.dumps(content).encode()))
    assert read_results(tmp_path / "r.json.gz") == {"000000000001": "a"}
    assert len(read_references(tmp_path / "g.json.gz").texts) == 2


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            [3],
            "unknown layout: {path} is a JSON list of 3; "
            + GIVE_LAYOUT.replace("{", "{{").replace("}", "}}"),
        ),
        (
            [{"image_id": 1, "caption": "a"}, {"image_id": 2}],
            "entry 2 of {path}: no field of the caption among 'image_id'; name it as "
            "data.fields.caption, of a2 score as --caption-column; fix or remove it",
        ),
        (
            [{"image_id": 1, "caption": "a"}, {"caption": "b"}],
            "entry 2 of {path} names no image; name the image of each",
        ),
        (
            [{"image_id": 1, "caption": "\ud83d"}],
            "caption at entry 1 of {path}: not valid Unicode; fix or remove it",
        ),
        (
            [{"image_id": 1, "caption": "a" * 10_000_000}],
            "caption at entry 1 of {path}: 10,000,000 characters, at most 10,000 are read; fix "
            "or remove it",
        ),
        (
            [{"image_id": n, "caption": "a"} for n in [1, 2, "2", 3, 1]],
            "2 images have more than one caption in {path}: 1, 2; keep one caption for each",
        ),
        (
            {"1": ["a dog", "dogs"], "2": ["a cat"]},
            "1 images have more than one caption in {path}: 1; keep one caption for each",
        ),
        (["a", []], "1 images have no caption in {path}: 2; caption each"),
        ({"1": [], "2": "a"}, "1 images have no caption in {path}: 1; caption each"),
        ('{"1": "a", "1": "b"}', "{path} has the key '1' twice; keep one"),
        (
            {"7": "['a dog', 'a cat']"},
            "caption at '7' of {path}: a list that was written as text: \"['a dog', 'a cat']\"; "
            "fix or remove it",
        ),
    ],
)
def test_unusable_results_are_rejected(tmp_path, entries, message):
    path = written(tmp_path, entries if isinstance(entries, str) else json.dumps(entries))
    assert message_of(read_results, path) == message.format(path=repr(str(path)))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        *(("image_id", value, "is not the name of an image: {}") for value in (-1, 1.5, True)),
        ("caption", 3, "is neither a text nor a list of texts: 3"),
        (
            "caption",
            ["a", "dog"],
            "is a list of single words: ['a', 'dog']; name it 'tokens' if it "
            "is a caption in tokens",
        ),
    ],
)
def test_values_of_another_type_are_rejected(tmp_path, key, value, reason):
    path = written(tmp_path, [{"image_id": 1, "caption": "a", key: value}])
    assert message_of(read_results, path) == (
        f"entry 1 of {str(path)!r}: {key!r} {reason.format(value)}; fix or remove it"
    )


def test_an_empty_caption_has_no_words_and_is_named(tmp_path, caplog):
    path = written(tmp_path, [{"image_id": 49, "caption": " "}, {"image_id": 5, "caption": "a"}])
    assert read_results(path) == {"000000000049": " ", "000000000005": "a"}
    assert caplog.messages == [
        f"{str(path)!r}: 1 of 2 captions are empty, and scored as having no words: 49 ' '"
    ]


def test_special_tokens_of_captioners_are_counted_in_one_warning(tmp_path, caplog):
    texts = ["<start> a dog", "a UNK runs", "a dog [SEP]", "a dog is unknown"]
    path = written(tmp_path, {f"{n}.jpg": text for n, text in enumerate(texts)})
    read_results(path)
    assert caplog.messages == [
        f"{str(path)!r}: 3 of 4 captions have special tokens, which metrics compare as words: "
        "0.jpg '<start> a dog'"
    ]


def test_an_empty_caption_that_is_listed_first_keeps_its_place(tmp_path):
    path = written(tmp_path, ["", "a cat"])
    assert read_captions(path, references_of("pq")).captions == {"p": "", "q": "a cat"}
    assert read_captions(written(tmp_path, []), references_of("pq")).captions == {}


def test_captions_without_images_state_their_order(tmp_path, caplog):
    coco = {
        "images": [{"id": 9}, {"id": 4}],
        "annotations": [
            {"image_id": 4, "id": 1, "caption": "A cat."},
            {"image_id": 9, "id": 2, "caption": "A dog."},
        ],
    }
    references = read_references(written(tmp_path, coco))
    for name, content in (("x.txt", "a dog\na cat\n"), ("y.json", ["a dog", "a cat"])):
        caplog.clear()
        path = written(tmp_path, content, name)
        results = read_captions(path, references)
        assert results.captions == {"000000000009": "a dog", "000000000004": "a cat"}
        assert caplog.messages == [
            f"captions of {str(path)!r} are taken in the order of the references' images: "
            "9: 'a dog', 4: 'a cat'",
            "the images have another order by id and of first captions; check the pairs, or give "
            "captions with ids",
        ]


def test_ids_of_annotations_and_names_of_files_name_one_image(tmp_path):
    images = [{"id": 27, "file_name": "cats/a.jpg"}, {"id": "x9", "file_name": "b.jpg"}]
    coco = {
        "images": images,
        "annotations": [
            {"image_id": image["id"], "id": n, "caption": "A cat."}
            for n, image in enumerate(images)
        ],
    }
    references = read_references(written(tmp_path, coco))
    for keys in ([27, "x9"], ["27", "b.jpg"], ["cats/a.jpg", "b"], ["/data/cats/a.jpg", "x9"]):
        entries = [{"image_id": key, "caption": "a cat"} for key in keys]
        results = read_captions(written(tmp_path, entries, "r.json"), references)
        assert results.keys == {"cats/a": keys[0], "b": keys[1]}


TWO = {"000000000001": ["A dog.", "Dogs"]}
JSONL = [
    {"image": "a.jpg", "captions": ["A dog."], "split": "test"},
    {"image": "b.jpg", "captions": ["A cat."], "split": "val"},
]


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        (
            "coco.json",
            COCO,
            {"000000000042": ["A dog.", "A dog runs."], "000000000007": ["A cat."]},
        ),
        # Of annotations that name their splits, the test split.
        ("dataset_coco.json", KARPATHY, {"000000000042": ["A dog."]}),
        ("captions.jsonl", "\n".join(map(json.dumps, JSONL)), {"a": ["A dog."]}),
        ("r.csv", "image,caption,split\n1.jpg,A dog.,test\n1.jpg,Dogs,test\n2.jpg,x,train\n", TWO),
        ("r.token", "1.jpg#0\tA dog.\n1.jpg#1\tDogs\n", TWO),
        ("own.jsonl", '{"image": "1.jpg", "captions": ["A dog.", "Dogs"]}', TWO),
        ("r.json", [{"image_id": 1, "captions": ["A dog.", "Dogs"]}], TWO),
        ("r.json", [["A dog.", "Dogs"], ["A cat."]], {"1": ["A dog.", "Dogs"], "2": ["A cat."]}),
        ("r.json", {"1": [{"caption": "A dog."}, {"caption": "Dogs"}]}, TWO),
        ("r.txt", "A dog.\nA cat.\n", {"1": ["A dog."], "2": ["A cat."]}),
        ("r.jsonl", '{"prediction": "x", "references": ["A dog."]}', {"1": ["A dog."]}),
        ("r.csv", "prediction,reference\nx,A dog.\n", {"1": ["A dog."]}),
    ],
)
def test_references_are_read_from_every_layout(tmp_path, name, content, texts):
    assert read_references(written(tmp_path, content, name)).texts == texts


@pytest.mark.parametrize(
    "texts", [["a dog, brown", "two dogs"], ["a man's hat"], ["一只猫躺在床上。", "一只黑猫在床上"]]
)
@pytest.mark.parametrize("tokenizer", ["karpathy", "unicode"])
def test_captions_without_capitals_are_tokenised(tmp_path, texts, tokenizer):
    path = written(tmp_path, {"000000000042": texts})
    tokens = read_references(path).tokens(tokenizer)
    assert tokens == tokenize({"000000000042": texts}, tokenizer)


def test_tokens_of_references_json_are_not_tokenised_again(tmp_path):
    path = written(tmp_path, {"000000000042": ["a bag of m&m"]})
    references = read_references(path)
    assert references.tokens() == references.texts == {"000000000042": ["a bag of m&m"]}


@pytest.mark.parametrize(
    "content", [COCO, {"42": ["A dog.", "A dog runs."], "7": "A cat."}, {"7": "a cat."}]
)
def test_other_references_are_tokenised(tmp_path, content):
    expected = {"000000000042": ["a dog", "a dog runs"], "000000000007": ["a cat"]}
    tokens = read_references(written(tmp_path, content)).tokens()
    assert tokens == {image_id: expected[image_id] for image_id in tokens}


def test_rejected_captions_of_vizwiz_are_no_references(tmp_path):
    bad = {"caption": "Quality issues are too severe", "is_precanned": True}
    annotations = [
        {"image_id": 42, "id": 1, "caption": "A dog.", "is_rejected": False},
        {"image_id": 42, "id": 2, **bad},
        {"image_id": 7, "id": 3, **bad},
    ]
    path = written(tmp_path, {**COCO, "annotations": annotations})
    assert read_references(path).texts == {"000000000042": ["A dog."]}


def test_skipped_references_are_logged(tmp_path, caplog):
    bad = {"filename": "9.jpg", "split": "test", "sentences": []}
    path = written(tmp_path, {"images": [*KARPATHY["images"], bad]})
    read_references(path)
    assert caplog.messages == [f"skipped in {path}: 000000000009 (no caption)"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {**COCO, "images": {}},
            "unknown layout: {path} is a JSON object of 'images', 'annotations'; the first of "
            "'annotations' has ",
        ),
        (
            {"42": []},
            "no usable image in {path}, read as a JSON object {{image: captions}}: 1 of 1 items "
            "skipped for one reason, first '000000000042': no caption; fix them",
        ),
        (
            {"42": ["a" * 10_001]},
            "no usable image in {path}, read as a JSON object {{image: captions}}: 1 of 1 items "
            "skipped for one reason, first '000000000042': caption 0: 10,001 characters, at most "
            "10,000 are read; fix them",
        ),
        (
            {"images": KARPATHY["images"][1:]},
            "no image of {path} is in its test split; name other references",
        ),
        (
            {"a.jpg": [""], "b.jpg": [" "]},
            "no reference of {path} has words; name other references",
        ),
        (
            {str(n): [] if n else ["A dog."] for n in range(12)},
            "11 of 12 references cannot be used, at most ",
        ),
    ],
)
def test_unusable_references_are_rejected(tmp_path, document, message):
    path = written(tmp_path, document)
    assert message_of(read_references, path).startswith(message.format(path=repr(str(path))))


EVERY = [str(number) for number in range(5000)]


def test_missing_captions_are_returned_if_they_are_allowed():
    assert require_same_images({"b": "b", "a": "a"}, references_of("ab")) == []
    captions = {identity: identity for identity in EVERY[18:]}
    assert require_same_images(captions, references_of(EVERY), allow_missing=True) == EVERY[:18]


@pytest.mark.parametrize(
    ("captioned", "known", "allowed", "message"),
    [
        (
            *(EVERY[18:], EVERY, False),
            "18 of 5,000 images with references have no caption: 0, 1, 2, 3, 4 and 13 more; "
            "caption them, or score the others with --allow-missing",
        ),
        ([], EVERY, False, "nothing to score: 0 captions; caption at least one image"),
        ([], EVERY, True, "nothing to score: 0 captions; caption at least one image"),
        (
            *(["1", "2", "3"], ["1"], False),
            "2 of 3 captions have no reference: 2, 3; "
            "remove them, or add references for those images",
        ),
    ],
    ids=["missing", "none", "none-allowed", "unknown"],
)
def test_captions_of_other_images_are_rejected_by_name(captioned, known, allowed, message):
    keys = {identity: identity for identity in captioned}
    references = references_of(known)
    assert message_of(require_same_images, keys, references, allow_missing=allowed) == message


@pytest.mark.slow
@pytest.mark.shared
def test_captions_of_another_model_have_the_scores_of_pycocoevalcap():
    """Golden values: COCOEvalCap of pycocoevalcap 1.2, run once on these two files."""
    if not SHARED.is_dir():
        pytest.skip("no COCO sample folder beside the checkout")
    references = read_references(SHARED / "coco/text/captions_karpathy_test_gt.json.gz")
    path = SHARED / "coco/results/where-image2_init_1.json.gz"
    results = read_captions(path, references)
    require_same_images(results.keys, references)
    candidates = tokenize({image_id: [text] for image_id, text in results.captions.items()})
    scores = score(candidates, references.tokens())
    golden = {
        "Bleu_1": 0.6777005,
        "Bleu_4": 0.2704779,
        "METEOR": 0.2247141,
        "ROUGE_L": 0.4978085,
        "CIDEr": 0.8117237,
    }
    assert {name: scores.metrics[name] for name in golden} == pytest.approx(golden, abs=1e-6)
    assert len(scores.per_image) == 5000


def test_results_have_the_ids_of_the_annotations_and_name_the_files(tmp_path):
    identities = Identities([("000000000001", 27), ("photos/a", "x_1"), ("000000000027", 1)])
    files = {"000000000001": "1.jpg", "photos/a": "photos/a.png", "000000000027": "27.jpg"}
    path = tmp_path / "captions.json"
    write_results(path, dict.fromkeys(files, "a dog"), identities, files)
    assert json.loads(path.read_text()) == [
        {"image_id": 27, "caption": "a dog", "image": "1.jpg"},
        {"image_id": 1, "caption": "a dog", "image": "27.jpg"},
        {"image_id": "x_1", "caption": "a dog", "image": "photos/a.png"},
    ]


def test_ids_of_annotations_that_captions_are_read_by_are_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    path = written(tmp_path, [{"image_id": 7, "caption": "a dog"}])
    assert {**read_captions(path, references_of(["a"], {"a": 7})).captions} == {"a": "a dog"}
    assert caplog.messages == [
        f"captions of {str(path)!r} name images by ids of the annotations, first 7: the file 'a'"
    ]
