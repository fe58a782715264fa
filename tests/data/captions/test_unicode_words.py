"""Words of captions in any script."""

import pytest

from a2cap.data.captions.unicode_words import unicode_words, without_false_spaces


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ein Hund läuft über die Straße.", "ein hund läuft über die straße"),
        ("L'eau d\u2019un well-known T_x 'quote'", "l'eau d\u2019un well known t x quote"),
        ("一只狗，在草地上跑。T恤", "一 只 狗 在 草 地 上 跑 t 恤"),
        ("クリップで犬が走る", "クリップ で 犬 が 走 る"),
        ("एक कुत्ता दौड़ रहा है।", "एक कुत्ता दौड़ रहा है"),
        ("كلبٌ يركض، على العشب؟", "كلبٌ يركض على العشب"),
        ("می\u200cخواهم 2 سگ", "می\u200cخواهم 2 سگ"),
        ("หมาวิ่ง", "ห ม า วิ่ ง"),
        ("Cafe\u0301 😀 ...", "café"),
        ("İki köpek İSTANBUL'DA", "iki köpek istanbul'da"),
        ("I\u0307ki köpek, i\u0307ki kedi", "iki köpek iki kedi"),
        ("Işıklı bir kapı", "ışıklı bir kapı"),
        ("In Iceland: an Inuit", "in iceland an inuit"),
    ],
)
def test_words_keep_their_marks_and_scripts_without_spaces_give_characters(text, words):
    # NFC composes some letters and splits others
    assert unicode_words(text) == unicode_words(words) == tuple(words.split(" "))


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("一 只 狗 在 跑", "一只狗在跑"),
        ("a dog 狗 和 cat", "a dog 狗和 cat"),
        ("犬 が iPhone 2 台", "犬が iPhone 2 台"),
        ("赤 い カメラ で 撮 る", "赤いカメラで撮る"),
        ("カメラ クリップ", "カメラ クリップ"),
        ("สุ นั ข", "สุนัข"),
        ("كلب يركض", "كلب يركض"),
        ("ein Hund läuft", "ein Hund läuft"),
    ],
)
def test_words_of_scripts_without_spaces_are_joined_without_false_spaces(text, joined):
    assert without_false_spaces(text) == joined
    assert unicode_words(joined) == unicode_words(text)
