"""Scoring of caption files: `a2 score`."""

import io
import json
import re
import tarfile
from functools import partial

import pytest
from PIL import Image

from a2cap.data.annotations.record import NAME_REFERENCES
from a2cap.data.files.json_file import read_json
from a2cap.data.scenes.generate import coco_captions, instances
from a2cap.data.scenes.scene import make_scene
from a2cap.pipeline.evaluation import score_captions as evaluation
from a2cap.pipeline.evaluation.references import References, require_same_images
from a2cap.pipeline.evaluation.results import read_captions
from a2cap.pipeline.metrics import cider, metric_table
from a2cap.pipeline.metrics.cider import CorpusFrequencies
from tests.data.messages import message_of, written
from tests.experiments import a2

CAPTIONS = {1: "a red dog runs", 2: "two dogs"}
REFERENCES = {1: ["A red dog runs.", "The dog is running."], 2: ["Two cats sleep.", "Cats."]}


@pytest.fixture
def files(tmp_path):
    """Write results and references; return the options that name them."""

    def write(captions=CAPTIONS, references=REFERENCES):
        results = [{"image_id": number, "caption": text} for number, text in captions.items()]
        pairs = [(number, text) for number, texts in references.items() for text in texts]
        coco = {
            "images": [{"id": number} for number in references],
            "annotations": [
                {"id": index, "image_id": number, "caption": text}
                for index, (number, text) in enumerate(pairs)
            ],
        }
        files = [
            written(tmp_path, results, "results.json"),
            *("--references", written(tmp_path, coco, "references.json")),
        ]
        return [*files, "--output", tmp_path / "scores"]

    return write


@pytest.fixture
def a2_evaluate(monkeypatch):
    monkeypatch.delitem(metric_table.FAMILIES, "METEOR")
    return partial(a2, "score")


@pytest.mark.parametrize("options", [[], ["--allow-missing"]])
def test_a_results_file_is_scored(a2_evaluate, files, tmp_path, options):
    answer = a2_evaluate(*files(), *options, code=0)
    assert answer.stderr == ""
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("BLEU-1   0.8333 ")  # five of six words, no brevity penalty
    assert lines[-4].startswith("SPICE    not run: ")
    assert lines[-3] == (
        "warning: CIDEr weighs n-grams by their frequency in the references of 2 images; with "
        "fewer than 50 it cannot be compared with other data; idf coco weighs by the captions of "
        "COCO"
    )
    assert lines[-2] == "2 captions of 3.0 words (2 to 4), 2 distinct, vocabulary of 6 words"
    assert lines[-1] == f"report: {tmp_path / 'scores' / 'report.html'}"
    content = read_json(tmp_path / "scores" / "metrics.json")
    assert (content["n"], content["total"]) == (2, 2)
    assert content["metrics"]["Bleu_1"] == pytest.approx(5 / 6)
    names = ["sha256 of references.json", "sha256 of results.json", "tokens of the metrics"]
    assert list(content["provenance"]) == names
    report = (tmp_path / "scores" / "report.html").read_text()
    assert "Captions of results.json" in report
    assert '"caption":"a red dog runs"' in report


def test_the_first_references_by_id_are_compared_with(a2_evaluate, files, tmp_path):
    captions = {1: "a red dog", 2: "a cat"}
    options = files(captions, {1: ["A blue bird.", "A red dog."], 2: ["A cat."]})
    coco = read_json(options[2])
    # one word in three of "a red dog" is in "a blue bird", which comes first in the file
    for reverse, most, bleu in ((False, 1, "0.6000"), (True, 1, "1.0000"), (False, 2, "1.0000")):
        for number, annotation in enumerate(coco["annotations"]):
            annotation["id"] = -number if reverse else number
        written(tmp_path, coco, "references.json")
        answer = a2_evaluate(*options, "--most-references", most, "--force")
        assert answer.stdout.startswith(f"BLEU-1   {bleu}")
    metrics = read_json(tmp_path / "scores" / "metrics.json")
    assert metrics["provenance"]["references"] == "the first 2 by id"
    assert " --most-references 2<" in (tmp_path / "scores" / "report.html").read_text()


@pytest.mark.slow
def test_false_words_about_generated_scenes_are_marked(a2_evaluate, tmp_path):
    scenes = [make_scene(index, seed=1, side=160) for index in range(2)]
    captions = {n: " ".join(w.text for w in scene.captions[0]) for n, scene in enumerate(scenes, 1)}
    captions[2] = "a red ball ball"  # follows no pattern, so it is not true
    results = [{"image_id": number, "caption": text} for number, text in captions.items()]
    objects = written(tmp_path, instances(scenes), "instances.json")
    answer = a2_evaluate(
        written(tmp_path, results, "results.json"),
        *("--references", written(tmp_path, coco_captions(scenes), "captions.json")),
        *("--output", tmp_path / "scores", "--scenes", objects),
        code=0,
    )
    assert ["truth", "0.5000"] in [line.split()[:2] for line in answer.stdout.splitlines()]
    rows = read_json(tmp_path / "scores" / "per_image.json")["images"]
    assert [row["false_words"] for row in rows.values()] == [[], [0, 1, 2]]
    assert '"caption":"a red ball ball","false":[0,1,2]' in (
        (tmp_path / "scores" / "report.html").read_text()
    )


def coco_instances(tmp_path, names=("dog", "cat"), images=(1, 2)):
    """Write instances: a dog on the first image, nothing on the others."""
    content = {
        "images": [{"id": n, "file_name": f"{n:012d}.jpg"} for n in images],
        "categories": [{"id": i, "name": name} for i, name in enumerate(names)],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 0, "bbox": [0, 0, 9, 9]}],
    }
    return written(tmp_path, content, "instances.json")


def test_chair_is_computed_of_instances_and_references(a2_evaluate, files, tmp_path):
    captions = {1: "a dog and a cow", 2: "a cat and a dog"}
    answer = a2_evaluate(*files(captions), "--instances", coco_instances(tmp_path), code=0)
    assert answer.stderr == ""
    rows = {line.split()[0]: line.split()[1:] for line in answer.stdout.splitlines()}
    assert rows["CHAIR-i"][0] == "0.5000"  # the cow, and the dog of the second image
    assert rows["CHAIR-s"][0] == "1.0000"
    assert rows["CHAIR-recall"] == ["1.0000", "1.0000", "to", "1.0000"]
    content = read_json(tmp_path / "scores" / "metrics.json")
    assert "sha256 of instances.json" in content["provenance"]
    report = (tmp_path / "scores" / "report.html").read_text()
    assert "CHAIR-recall" in report and " --instances " in report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("dog", "fish", "house")}, "not COCO's 80 categories: fish, house in "),
        ({"images": (1,)}, "no instances of 1 of 2 images: 000000000002; "),
    ],
)
def test_instances_of_other_categories_or_images_are_rejected(files, tmp_path, options, message):
    answer = a2("score", *files(), "--instances", coco_instances(tmp_path, **options), code=1)
    assert message in answer.stderr


def test_missing_instances_and_two_sources_of_objects_are_rejected(files, tmp_path):
    answer = a2("score", *files(), "--instances", tmp_path / "none.json", code=1)
    assert f"{str(tmp_path / 'none.json')!r}" in answer.stderr
    path = coco_instances(tmp_path)
    answer = a2("score", *files(), "--instances", path, "--scenes", path, code=2)
    assert "--scenes and --instances both state the objects of images" in answer.stderr


def test_captions_of_any_language_are_scored_as_unicode_words(files, tmp_path):
    captions = {1: "ein Hund läuft", 2: "一只狗跑", 3: "एक कुत्ता", 4: "كلب يركض"}
    references = {1: ["Ein Hund läuft!"], 2: ["一只猫跑。"], 3: ["एक बिल्ली।"], 4: ["كلب، ينام"]}
    answer = a2("score", *files(captions, references), "--tokenizer", "unicode", code=0)
    assert answer.stderr == ""
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("BLEU-1   0.7273")  # 8 of 11 words and characters
    reason = "not run: it reads English alone, the captions are compared as Unicode words"
    assert lines[-6:-4] == [f"METEOR   {reason}", f"SPICE    {reason}"]
    metrics = read_json(tmp_path / "scores" / "metrics.json")
    assert metrics["provenance"]["tokens of the metrics"] == "Unicode words"
    assert "Unicode words" in (tmp_path / "scores" / "report.html").read_text()


def test_captions_in_another_script_than_latin_are_compared_as_unicode_words(files, caplog):
    captions = {1: "一只狗跑", 2: "一只猫"}
    answer = a2("score", *files(captions, {1: ["一只狗跑。"], 2: ["一只猫睡。"]}), code=0)
    assert answer.stdout.startswith("BLEU-1   0.8669")  # 7 words, all right, of 8
    assert "METEOR   not run: it reads English alone" in answer.stdout
    assert caplog.messages == [
        "100 % of the letters of the references are CHINESE OR JAPANESE: captions are compared as "
        "Unicode words, without METEOR and SPICE, which read English; --tokenizer decides"
    ]


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        (
            "x.json",
            [
                {"prediction": "a red dog runs", "references": REFERENCES[1]},
                {"prediction": "two dogs", "references": REFERENCES[2]},
            ],
            [],
        ),
        (
            "x.jsonl",
            '{"image": "1.jpg", "caption": "a red dog runs", "references": ["A red dog runs.", '
            '"The dog is running."]}\n{"image": "2.jpg", "caption": "two dogs", "references": '
            '["Two cats sleep.", "Cats."]}',
            [],
        ),
        (
            "x.csv",
            "image,mine,r1,r2\n1.jpg,a red dog runs,A red dog runs.,The dog is running.\n"
            "2.jpg,two dogs,Two cats sleep.,Cats.\n",
            ["--caption-column", "mine", "--reference-column", "r1", "--reference-column", "r2"],
        ),
        (
            "x.csv",
            "prediction,reference_1,reference_2\na red dog runs,A red dog runs.,The dog is running."
            "\ntwo dogs,Two cats sleep.,Cats.\n",
            [],
        ),
    ],
)
def test_captions_beside_references_are_scored(a2_evaluate, tmp_path, name, content, options):
    answer = a2_evaluate(written(tmp_path, content, name), *options, code=0)
    assert answer.stdout.startswith("BLEU-1   0.8333 ")


def test_captions_without_references_beside_them_are_rejected(a2_evaluate, tmp_path):
    path = written(tmp_path, [{"image_id": 1, "caption": "a dog"}])
    answer = a2_evaluate(path, code=1)
    assert answer.stderr == (
        f"a2: no usable image in {str(path)!r}, read as a JSON list of records: 1 of 1 items "
        "skipped for one reason, first 'entry 1': no field of the references among 'image_id', "
        f"'caption'; {NAME_REFERENCES}; fix them\n"
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", "A dog runs.\n"),
        ("x.csv", "image,caption\n1.jpg,A dog runs.\n"),
        ("x.json", ["A dog runs."]),
        (
            "x.json",
            {
                "images": [{"id": 1, "file_name": "a.jpg"}],
                "annotations": [{"image_id": 1, "caption": "A dog runs."}],
            },
        ),
        ("x.json", {"data": [{"image_id": "a", "caption_str": "A dog runs."}]}),
    ],
)
def test_captions_are_not_scored_against_themselves(a2_evaluate, tmp_path, name, content):
    path = written(tmp_path, content, name)
    expected = f"a2: no references in {str(path)!r}; {NAME_REFERENCES}\n"
    assert a2_evaluate(path, code=1).stderr == expected


def test_texts_in_tars_are_not_scored_against_themselves(a2_evaluate, tmp_path):
    with tarfile.open(path := tmp_path / "x.tar", "w") as tar:
        for name, content in (("a.jpg", b"an image"), ("a.txt", b"A dog runs.")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    reason = f"no field of the references among 'captions'; {NAME_REFERENCES}"
    assert reason in a2_evaluate(path, code=1).stderr


def test_a_field_that_a_form_cannot_have_is_rejected(a2_evaluate, tmp_path):
    path = written(tmp_path, "A dog runs.\n", "x.txt")
    answer = a2_evaluate(path, "--references", path, "--reference-column", "mine", code=1)
    assert answer.stderr == (
        f"a2: no field 'mine' in {str(path)!r}, read as lines of text; leave it out\n"
    )


def test_ids_come_back_as_they_are_in_the_file(a2_evaluate, files, tmp_path):
    named = files({1: "a red dog runs"})
    table = tmp_path / "images.csv"
    answer = a2_evaluate(*named, "--allow-missing", "--per-image", table, code=3)
    assert answer.stderr == (
        "a2: 1 of 2 images with references have no caption: 2; scored without them\n"
    )
    assert table.read_text().splitlines()[1].startswith("1,a red dog runs,")


def test_cider_by_the_frequencies_of_coco_is_stated(a2_evaluate, files, tmp_path, monkeypatch):
    frequencies = CorpusFrequencies.count([["a dog"]] * 9)
    monkeypatch.setattr(cider, "coco_frequencies", lambda: frequencies)
    captions = {1: CAPTIONS[1]}
    answer = a2_evaluate(*files(captions, {1: REFERENCES[1]}), "--idf", "coco", code=0)
    assert answer.stderr == ""
    assert "warning" not in answer.stdout
    metrics = read_json(tmp_path / "scores" / "metrics.json")
    assert metrics["metrics"]["CIDEr"] > 0
    assert metrics["provenance"]["document frequencies"] == "COCO train2014"


@pytest.mark.slow
def test_images_of_a_folder_are_shown_in_the_report(a2_evaluate, files, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 48)).save(folder / "COCO_val2014_000000000001.jpg", exif=exif)
    (folder / "2.jpg").write_bytes(b"no image")
    answer = a2_evaluate(*files(), "--images", folder, code=0)
    report = (tmp_path / "scores" / "report.html").read_text()
    [(image_id, detail)] = re.findall(r'class="detail" data-id="(\d+)">(.*?)</script>', report)
    assert image_id == "000000000001"
    content = json.loads(detail)
    assert (content["width"], content["height"], content["boxes"]) == (48, 64, [])
    assert content["thumbnail"].startswith("data:image/jpeg;base64,")
    answer = a2_evaluate(*files(), "--force", "--images", tmp_path / "none", code=2)
    missing = repr(str(tmp_path / "none"))
    assert answer.stderr == f"a2: --images is not a folder: {missing}; check the path\n"


@pytest.mark.slow
def test_groups_of_words_of_a_results_file_are_scored(a2_evaluate, files, tmp_path):
    path = tmp_path / "words.json"
    path.write_text('{"kinds": ["dog", "dogs", "cats"], "colours": ["red"]}')
    option = ["--word-groups", path]
    a2_evaluate(*files(), *option, code=0)
    content = read_json(tmp_path / "scores" / "metrics.json")
    colours, kinds = (content["word_groups"][name] for name in ("colours", "kinds"))
    assert (colours["precision"], colours["predicted"]) == (1, 1)
    assert (kinds["precision"], kinds["predicted"]) == (0.5, 2)
    assert "sha256 of words.json" in content["provenance"]

    path.write_text('{"kinds": []}')
    answer = a2_evaluate(*files(), *option, "--force", code=1)
    assert answer.stderr == (
        f"a2: group 'kinds' of {str(path)!r} is not a list of words; add some, or remove it\n"
    )


@pytest.mark.slow
def test_existing_scores_are_replaced_only_by_force(a2_evaluate, files, tmp_path):
    a2_evaluate(*files(), code=0)
    before = (tmp_path / "scores" / "metrics.json").read_bytes()
    named = files({1: "a cat", 2: "a dog"})
    answer = a2_evaluate(*named, code=1)
    assert answer.stderr == (
        f"a2: {str(tmp_path / 'scores')!r} already contains scores; "
        "name another folder, or use --force\n"
    )
    assert (tmp_path / "scores" / "metrics.json").read_bytes() == before
    a2_evaluate(*named, "--force", code=0)
    assert (tmp_path / "scores" / "metrics.json").read_bytes() != before


@pytest.mark.slow
def test_allow_missing_scores_the_other_captions(a2_evaluate, files, tmp_path):
    answer = a2_evaluate(*files({1: CAPTIONS[1]}), "--allow-missing", code=3)
    assert answer.stdout.splitlines()[0] == "BLEU-1   1.0000"  # all four words of image 1
    content = read_json(tmp_path / "scores" / "metrics.json")
    assert (content["n"], content["total"]) == (1, 2)
    report = (tmp_path / "scores" / "report.html").read_text()
    assert "1 of 2 images, 1 skipped" in report
    assert "no caption in results.json" in report


def test_files_must_exist_and_images_need_a_report(a2_evaluate, files, tmp_path):
    answer = a2_evaluate(*files()[:3], "--images", tmp_path, code=2)
    assert answer.stderr.splitlines()[-1] == (
        "Error: --images belongs to --output; name a folder, or leave it out"
    )
    answer = a2_evaluate("r.json", "--references", "x.json", code=1)
    assert answer.stderr.startswith("a2: 2 paths do not exist; check them:\n")


def test_captions_of_other_files_are_compared_and_listed_by_image(a2_evaluate, files, tmp_path):
    named = files()
    other = written(tmp_path, {"1": "a red cat", "2": "two dogs"}, "other.json")
    table = tmp_path / "images.csv"
    answer = a2_evaluate(*named[:3], "--compare", other, "--per-image", table, code=0)
    assert answer.stderr == ""
    lines = answer.stdout.splitlines()
    start = lines.index("A other.json")
    assert lines[start + 1] == "B results.json"
    assert lines[start + 3].split()[:4] == ["BLEU-1", "0.6000", "0.8333", "+0.2333"]
    header, first, _ = table.read_text().splitlines()
    assert header == "image_id,caption,Bleu_1,Bleu_2,Bleu_3,Bleu_4,ROUGE_L,CIDEr"
    assert first.startswith("1,a red dog runs,")
    answer = a2_evaluate(
        *named[:3], "--allow-missing", "--compare", written(tmp_path, {"1": "a"}), code=1
    )
    assert answer.stderr == (
        "a2: the captions to compare are of different images; score both with the same references\n"
    )


def test_unusable_layouts_are_rejected_in_one_line(tmp_path):
    text = tmp_path / "x.txt"
    text.write_text("one line\n")
    references = References({"1": [], "2": []}, {}, {})
    assert message_of(read_captions, text, references) == (
        f"{str(text)!r} has 1 captions without images, the references 2 images; name the image "
        "of each, or give one for each image, in the order of the references"
    )
    references = References({"000000000001": []}, {}, {})
    assert message_of(require_same_images, {"dog": "dog", "cat": "cat"}, references).endswith(
        ". Ids of captions: dog, cat; of references (their own ids, else the file names without "
        "suffix): 000000000001"
    )


def test_unusable_captions_are_rejected_before_tokenisation(
    a2_evaluate, files, tmp_path, monkeypatch
):
    monkeypatch.setattr(evaluation, "tokenize", None)
    monkeypatch.setattr(References, "tokens", None)
    answer = a2_evaluate(*files({1: "a dog"}), code=1)
    assert answer.stderr == (
        "a2: 1 of 2 images with references have no caption: 2; "
        "caption them, or score the others with --allow-missing\n"
    )
    assert not (tmp_path / "scores").exists()


@pytest.mark.slow
def test_without_spice_the_exit_code_is_3_with_what_to_do(files, tmp_path, without_meteor):
    answer = a2("score", *files(), "--spice", code=3)
    assert answer.stderr == (
        'a2: scored without SPICE; run "a2 weights fetch spice" and the same command again, '
        "or leave it out\n"
    )
    assert list(read_json(tmp_path / "scores" / "metrics.json")["not_run"]) == ["SPICE"]
