"""Flickr30k Entities: phrases, boxes, classes, and files that cannot be used."""

import pytest

from a2cap.data.captions.entities import PhraseClasses, read_entities
from a2cap.data.image_ids import image_id
from tests.data.messages import message_of

LINE = "[/EN#1/people Two young Men] hold [/EN#2/other/clothing a red hat] , [/EN#0/notvisual it] ."
FIRST, SECOND = image_id("1000.jpg"), image_id("2000.jpg")
BOX = "<bndbox><xmin>{}</xmin><ymin>5</ymin><xmax>50</xmax><ymax>60</ymax></bndbox>"


def write(folder, *lines, left=10, name="1000", numbers=(1, 1), size=100):
    for part in ("Sentences", "Annotations"):
        (folder / part).mkdir(exist_ok=True)
    (folder / "Sentences" / f"{name}.txt").write_text("\n".join(lines))
    objects = "".join(
        f"<object><name>{number}</name>{BOX.format(left)}</object>" for number in numbers
    )
    (folder / "Annotations" / f"{name}.xml").write_text(
        f"<annotation><size><width>{size}</width><height>80</height></size>{objects}"
        "<object><name>2</name><nobndbox>1</nobndbox></object></annotation>"
    )
    return folder


def test_phrases_have_their_words_classes_and_boxes(tmp_path):
    images, skipped, classes = read_entities(write(tmp_path, LINE, "A man ."), [FIRST, SECOND])
    assert skipped == {SECOND: "no file of it in 'Sentences'"}
    image = images[FIRST]
    assert image.size == (100, 80)
    first, second = image.sentences
    assert first.words == ("two", "young", "men", "hold", "a", "red", "hat", "it")
    men, hat = first.objects
    assert (men.position, men.label, men.boxes.tolist()) == (2, "men", [[10, 5, 50, 60]] * 2)
    assert (hat.position, hat.label, len(hat.boxes)) == (6, "hat", 0)
    assert second.words == ("a", "man")
    assert second.objects == ()
    assert classes.mentions(["men", "and", "hats"]) == [(range(1), "men"), (range(2, 3), "hat")]


def test_plurals_are_of_the_class_of_their_singular():
    classes = PhraseClasses(["man", "dog", "dogs", "baby", "men", "part", "bus"])
    words = ("men", "dogs", "babies", "parts", "party", "buses", "women")
    assert [classes.of(word) for word in words] == ["man", "dog", "baby", "part", "", "bus", ""]


@pytest.mark.parametrize(
    ("line", "options", "reason"),
    [
        ("[/EN#1/people A man", {}, "phrase without its end or its number: '[/EN#1/people A man'"),
        (LINE, {"left": -30}, "box 0 is outside the image of 100 x 80 pixels: [-30.0, 5.0, 50.0"),
        (LINE, {"left": 70}, "box 0 ends before it begins: [70.0, 5.0, 50.0, 60.0]"),
        (LINE, {"size": "wide"}, "cannot read '1000.xml' (invalid literal for int()"),
        ("[/EN#8/people A man] .", {}, "none of its 1 phrases is in '1000.xml': boxes of other se"),
    ],
)
def test_an_image_of_damaged_files_is_left_out_with_its_reason(tmp_path, line, options, reason):
    images, skipped, _ = read_entities(write(tmp_path, line, **options), [FIRST])
    assert images == {}
    assert skipped[FIRST].startswith(reason)


def test_an_image_without_boxes_file_is_left_out(tmp_path):
    write(tmp_path, LINE)
    (tmp_path / "Annotations" / "1000.xml").unlink()
    _, skipped, _ = read_entities(tmp_path, [FIRST])
    assert skipped[FIRST].startswith("cannot read '1000.xml' (")
    assert skipped[FIRST].endswith("); get it again")


def test_a_folder_of_another_layout_is_rejected(tmp_path):
    assert message_of(read_entities, tmp_path, [FIRST]) == (
        f"not Flickr30k Entities: no folders 'Sentences' and 'Annotations' in {str(tmp_path)!r}; "
        "name the folder that contains both"
    )
