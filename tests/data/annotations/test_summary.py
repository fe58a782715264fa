"""What is said of annotations before a run, and captions that are cleaned."""

import json

import pytest

from a2cap.data.annotations.read import read_annotations
from a2cap.data.annotations.summary import cleaned, doubts, needs_unicode, summarize
from a2cap.data.data_config import PreprocessConfig
from tests.data.messages import message_of, touch, written


def annotations(folder, *groups, split="train"):
    """Read images, each with a list of captions."""
    rows = [{"image": f"{n}.jpg", "captions": g, "split": split} for n, g in enumerate(groups)]
    return read_annotations(written(folder, "\n".join(map(json.dumps, rows)), "x.jsonl"))


def raws(read):
    return [[caption.raw for caption in image.captions] for image in read.images]


def test_one_line_states_what_was_read(tmp_path):
    read = annotations(tmp_path, ["a dog", "a dog runs"], ["a cat zz", "a cat"])
    assert summarize(read) == (
        "read as JSON Lines of records: 2 images; 4 captions (2 an image); 2 to 3 words, mean 2.5; "
        "rarest characters 'n' 1, 'r' 1, 's' 1, 'u' 1, 'c' 2; train 2"
    )
    uneven = annotations(tmp_path, ["a dog"], ["a cat", "cats sit"], ["."])
    assert "3 captions (1 image has 1, 1 image has 2)" in summarize(uneven)
    assert summarize(uneven).endswith("; train 2; 1 items skipped")
    many = annotations(tmp_path, *([f"a dog {n}" for n in range(count)] for count in range(1, 6)))
    assert "15 captions (1 to 5 an image, mean 3.0)" in summarize(many)


def test_texts_of_several_lines_beside_images_are_several_captions_and_said_to_be(tmp_path):
    touch(tmp_path, *(f"{n}.jpg" for n in range(16)))
    for n in range(16):
        (tmp_path / f"{n}.txt").write_text(f"A dog {n}.\nOf the breed {n},\nrunning.\n")
    read = read_annotations(tmp_path, split="random(0.8/0.1/0.1, 1)")
    assert "16 images; 48 captions (3 an image)" in summarize(read)


@pytest.mark.parametrize(
    ("caption", "what"),
    [
        ("a <b>dog</b> &amp; cat", "have tags or entities (preprocess.clean: html)"),
        ("dog " * 61, "have more than 60 words (preprocess.max_words)"),
        ("a dog [SEP]", "have special tokens, which metrics compare as words"),
        ("Sure! Here is a caption: a dog", "begin as an answer of a chat model"),
        ("Here's a short description of it: a dog", "begin as an answer of a chat model"),
        ("NaN", "stand for a missing value"),
        ("||| a dog", "stand for a missing value"),
        ("a\x07dog", "have control characters"),
        ("12 34", "have no letters"),
    ],
)
def test_a_caption_that_may_not_be_meant_is_counted_with_an_example(tmp_path, caption, what):
    read = annotations(tmp_path, ["a dog runs", caption], ["sure enough, here is a cat > 3"])
    assert doubts(read) == [f"1 of 3 captions {what}: 000000000000 {caption[:60]!r}"]


def test_a_caption_of_many_images_is_named(tmp_path):
    read = annotations(tmp_path, ["a dog"], ["a dog", "cats"], ["a bird"], ["a dog", "a dog"])
    assert doubts(read) == ["3 of 4 images share one caption: 'a dog'"]


@pytest.mark.parametrize(
    ("caption", "script", "spaceless"),
    [
        ("一只狗在草地上跑", "CHINESE OR JAPANESE", True),
        ("犬が走っている", "CHINESE OR JAPANESE", True),
        ("สุนัขกำลังวิ่ง", "THAI", True),
        ("كلب يركض في الحقل", "ARABIC", False),
        ("एक कुत्ता दौड़ रहा है", "DEVANAGARI", False),
        ("Ein Hündchen läuft", None, False),
        ("Işıkta bir köpek koşuyor", None, False),
    ],
)
def test_other_scripts_than_latin_name_the_tokenizer(tmp_path, caption, script, spaceless):
    read = annotations(tmp_path, [caption, f"{caption} A"])
    share = {True: "letters are", False: ""}[script is not None]
    assert needs_unicode(read) is spaceless
    lines = doubts(read)
    assert len(lines) == (script is not None)
    if lines:
        assert f"% of the {share} {script}: " in lines[0]
        assert "preprocess.tokenizer=unicode" in lines[0]
        assert doubts(read, "unicode") == []


def test_the_dotted_capital_of_turkish_names_the_tokenizer(tmp_path):
    summary = annotations(tmp_path, ["Bir köpek", "İki köpek"])
    assert doubts(summary) == [
        "1 of 2 captions have 'İ', which is two characters in lower case unless "
        "preprocess.tokenizer=unicode is set: 'İki köpek'"
    ]
    assert doubts(summary, "unicode") == []


def test_characters_count_as_words_where_no_spaces_are_written(tmp_path):
    summary = annotations(tmp_path, ["一只狗", "一只小狗"])
    assert "2 captions (2 an image); 3 to 4 words, mean 3.5" in summarize(summary)


def test_markup_and_long_captions_are_left_out_if_it_is_set(tmp_path, caplog):
    groups = [["a <b>dog</b> &amp; cat", "a dog"], ["dog " * 9], ["<p></p>", "cats &lt;3"]]
    summary = annotations(tmp_path, *groups)
    assert cleaned(summary, PreprocessConfig()) is summary
    html = cleaned(summary, PreprocessConfig(clean="html"))
    assert raws(html) == [["a dog & cat", "a dog"], ["dog " * 9], ["cats <3"]]
    assert html.images[0].captions[0].tokens == ("a", "dog", "&", "cat")
    short = cleaned(summary, PreprocessConfig(max_words=8))
    assert raws(short) == [groups[0], groups[2]]
    assert caplog.messages == [
        "1 captions are left out by preprocess.clean and max_words, with 0 images",
        "1 captions are left out by preprocess.clean and max_words, with 1 images",
    ]
    summary = annotations(tmp_path, ["a dog"])
    assert message_of(cleaned, summary, PreprocessConfig(max_words=1)) == (
        "no caption has 1 words or less; raise preprocess.max_words"
    )
