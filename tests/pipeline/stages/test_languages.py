"""Captions of seven languages as Unicode words: vocabulary, text again, and the metrics' tokens."""

import json
from itertools import product
from unicodedata import normalize

import pytest
import yaml

from a2cap.data.annotations.read import read_annotations
from a2cap.data.captions.caption_file import CaptionFile
from a2cap.data.captions.reference_tokens import load_reference_tokens
from a2cap.data.captions.unicode_words import without_false_spaces
from a2cap.data.captions.vocabulary import UNK, Vocabulary
from a2cap.data.data_config import PreprocessConfig
from a2cap.pipeline.configuration import load_config
from a2cap.pipeline.engine.artifact_names import CAPTIONS, REFERENCES, VOCABULARY
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.extraction.convert import convert
from a2cap.pipeline.metrics.all_metrics import ENGLISH_ONLY, score
from a2cap.pipeline.metrics.tokenization import tokenize
from a2cap.pipeline.stages.preprocess import preprocess
from tests.data.features.stores import write_store
from tests.experiments import SECTIONS

CONFIG = PreprocessConfig(min_count=1, max_length=40, tokenizer="unicode")

LANGUAGES = {
    "Chinese": (
        ("一只狗", "两只猫", "一个男人", "孩子们"),
        ("在草地上跑", "坐在桌子旁边", "看着大海", "在街上走", "站在红色的门前"),
        "。",
    ),
    "Japanese": (
        ("一匹の犬", "白い猫", "カメラを持つ男性", "子どもたち"),
        (
            "が草の上を走る",
            "がテーブルのそばに座る",
            "が海を見ている",
            "が道を歩く",
            "が赤いドアの前に立つ",
        ),
        "。",
    ),
    "Thai": (
        ("สุนัขตัวหนึ่ง", "แมวสองตัว", "ผู้ชายคนหนึ่ง", "เด็กๆ"),
        ("วิ่งบนหญ้า", "นั่งข้างโต๊ะ", "มองทะเล", "เดินบนถนน", "ยืนหน้าประตูสีแดง"),
        "",
    ),
    "Arabic": (
        ("كلب صغير ", "قطتان ", "رجلٌ ", "أطفال "),
        ("على العشب", "بجانب الطاولة", "ينظر إلى البحر", "في الشارع", "أمام باب أحمر"),
        ".",
    ),
    "Hindi": (
        ("एक कुत्ता ", "दो बिल्लियाँ ", "एक आदमी ", "बच्चे "),
        ("घास पर", "मेज़ के पास", "समुद्र देख रहे हैं", "सड़क पर", "लाल दरवाज़े के सामने"),
        "।",
    ),
    "German": (
        ("Ein Hund ", "Zwei Kätzchen ", "Ein Mann mit Hut ", "Die Mädchen "),
        ("an der Straße", "neben dem Tisch", "am Meer", "auf grüner Wiese", "vor der roten Tür"),
        ".",
    ),
    "Turkish": (
        ("İki köpek ", "Işıklı bir tekne ", "Bir adam ", "Çocuklar "),
        ("çimenlerde koşuyor", "masanın yanında", "İstanbul'da", "sokakta", "kırmızı kapıda"),
        "!",
    ),
}
"""Beginnings and ends of captions, and their punctuation."""


def in_lower_case(caption, language):
    if language == "Turkish":
        caption = caption.replace("İ", "i").replace("I", "ı")
    return normalize("NFC", caption.lower())


def twenty_images(folder, language):
    """Return the captions of 20 images, their file, and their stop."""
    begins, ends, stop = LANGUAGES[language]
    texts = {f"{n:012d}": a + b for n, (a, b) in enumerate(product(begins, ends), start=1)}
    assert len(texts) == 20
    rows = [
        {"image": f"{i}.jpg", "captions": [t + stop], "split": "train"} for i, t in texts.items()
    ]
    rows.append({**rows[0], "image": "21.jpg", "split": "val"})
    file = folder / "captions.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return texts, file, stop


@pytest.mark.parametrize("language", LANGUAGES)
def test_captions_of_a_language_are_the_same_after_their_words(tmp_path, language):
    texts, file, stop = twenty_images(tmp_path, language)
    annotations = read_annotations(file)
    assert preprocess(CONFIG, annotations, file, tmp_path, EventLog(tmp_path)) == []

    vocabulary = Vocabulary.load(tmp_path / VOCABULARY)
    captions = CaptionFile(tmp_path / CAPTIONS)
    ids = {image_id: captions.captions(image_id)[0] for image_id in texts}
    assert not any(UNK in row for row in ids.values())
    decoded = {image_id: vocabulary.decode(row) for image_id, row in ids.items()}
    joined = {image_id: without_false_spaces(text) for image_id, text in decoded.items()}
    assert joined == {i: in_lower_case(text, language) for i, text in texts.items()}
    assert not any("\u0307" in word for word in vocabulary.words)  # the dot of "İ".lower()

    # the metrics compare the words that the captioner learns
    references = {image_id: [text + stop] for image_id, text in texts.items()}
    words = {image_id: [text] for image_id, text in decoded.items()}
    assert tokenize({i: [text] for i, text in joined.items()}, "unicode") == words
    assert tokenize(references, "unicode") == words
    assert {i: load_reference_tokens(tmp_path / REFERENCES)[i] for i in texts} == words
    scores = score(decoded, words, tokenizer="unicode")
    assert [scores.metrics[f"Bleu_{n}"] for n in range(1, 5)] == pytest.approx([1] * 4)
    assert scores.metrics["ROUGE_L"] == pytest.approx(1)
    others = dict(zip(decoded, reversed(decoded.values()), strict=True))
    unlike = score(others, words, tokenizer="unicode").metrics
    assert scores.metrics["CIDEr"] > 5 * unlike["CIDEr"]
    assert {scores.not_run[name] for name in ("METEOR", "SPICE")} == {ENGLISH_ONLY}


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_captioner_learns_a_language_from_twenty_images(tmp_path, language):
    texts, file, _ = twenty_images(tmp_path, language)
    write_store(tmp_path / "store", [*texts, "000000000021"])
    convert(tmp_path / "store", tmp_path / "features.tsv", form="caffe")
    config = tmp_path / "config.yaml"
    sections = {name: SECTIONS[name] for name in ("model", "runtime")}
    sections["data"] = {"annotations": str(file), "features": str(tmp_path / "features.tsv")}
    sections["preprocess"] = CONFIG.model_dump(include={"min_count", "max_length", "tokenizer"})
    sections["train"] = {"epochs": 12, "batch_size": 4, "warmup": 5, "validation_beam_size": 1}
    sections["evaluate"] = {"beam_size": 2, "spice": False}
    config.write_text(yaml.safe_dump(sections))
    with Experiment(load_config(config), tmp_path / "artifacts") as experiment:
        folders = {name: experiment.run(name).directory for name in experiment.names}

    lines = map(json.loads, (folders["train-xe"] / "metrics.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines]
    assert losses[-1] < 0.6 * losses[0]
    [entry] = json.loads((folders["evaluate"] / "captions.json").read_text())
    words = set(Vocabulary.load(folders["preprocess"] / VOCABULARY).words)
    [[tokens]] = tokenize({"x": [entry["caption"]]}, "unicode").values()
    assert {*tokens.split()} <= words
    # no false spaces: written as people write the language
    assert entry["caption"] == without_false_spaces(tokens)
    assert (" " in entry["caption"]) == (language not in ("Chinese", "Japanese", "Thai"))
    measured = json.loads((folders["evaluate"] / "metrics.json").read_text())
    assert measured["metrics"]["Bleu_1"] > 0
    assert measured["not_run"]["METEOR"] == measured["not_run"]["SPICE"] == ENGLISH_ONLY
