"""Truth of captions: those of the grammar are true, and each wrong word of one is found."""

import json

import pytest

from a2cap.data.scenes import sentence_patterns as grammar
from a2cap.data.scenes.generate import instances
from a2cap.data.scenes.objects import COLOURS, OBJECT_CATEGORIES, PLURALS, SceneObject
from a2cap.data.scenes.scene import Scene, make_scene
from a2cap.data.scenes.truth import Statement, judge, read_scenes
from a2cap.pipeline.metrics.metric_table import SUBJECTS
from tests.data.messages import message_of

OPPOSITES = {"left": "right", "above": "below", "largest": "smallest", "larger": "smaller"}
OPPOSITES |= {opposite: word for word, opposite in OPPOSITES.items()}


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene(index, seed=11, side=160) for index in range(80)]


def ball(colour: str, x: float, *, size: str = "small", category: str = "ball") -> SceneObject:
    half = {"small": 12, "large": 28}[size]
    return SceneObject(category, colour, size, "plain", (x - half, 60 - half, x + half, 60 + half))


def verdicts(caption: str, *objects: SceneObject) -> dict[str, bool]:
    words = caption.split()
    statements = judge(words, objects).statements
    return {words[s.words[0]]: s.is_true for s in statements}


def test_captions_of_the_grammar_are_true(scenes):
    judged = [
        judge([word.text for word in caption], scene.objects)
        for scene in scenes
        for caption in scene.captions
    ]
    assert all(judgement.is_true for judgement in judged)
    assert {s.family for judgement in judged for s in judgement.statements} == set(SUBJECTS)


def test_captions_of_other_scenes_are_false(scenes):
    true = [
        judge([word.text for word in caption], other.objects).is_true
        for scene, other in zip(scenes, scenes[1:] + scenes[:1], strict=True)
        for caption in scene.captions
    ]
    assert sum(true) / len(true) < 0.1


def corruptions(word: str, objects: tuple[SceneObject, ...]) -> list[str]:
    """Return words that make a caption false in place of a true one."""
    absent = set(OBJECT_CATEGORIES) - {obj.category for obj in objects}
    if word in PLURALS:
        return sorted(absent)
    if word in PLURALS.values():
        return [PLURALS[category] for category in sorted(absent)]
    if word in COLOURS:
        return sorted(COLOURS.keys() - {obj.colour for obj in objects})
    for family, groups in (("texture", grammar.TEXTURE_WORDS), ("size", grammar.SIZE_WORDS)):
        if any(word in words for words in groups.values()):
            held = {getattr(obj, family) for obj in objects}
            return [words[0] for value, words in groups.items() if value not in held]
    if word in grammar.NUMBERS:
        return [number for number in grammar.NUMBERS[1:] if number != word]
    return [OPPOSITES[word]] if word in OPPOSITES else []


def test_each_wrong_word_is_found(scenes):
    families = set()
    for scene in scenes:
        for caption in scene.captions:
            words = [word.text for word in caption]
            for position, word in enumerate(words):
                # "the smallest of the two balls is red" may be true as well
                other = () if words[2:4] == ["of", "the"] else corruptions(word, scene.objects)
                for wrong in other[:2]:
                    changed = [*words[:position], wrong, *words[position + 1 :]]
                    judgement = judge(changed, scene.objects)
                    assert position in judgement.false_words, (changed, judgement)
                    assert not judgement.is_true
                    families |= {s.family for s in judgement.statements if position in s.words}
    assert families == set(SUBJECTS)


def test_each_statement_is_judged_on_its_own():
    objects = (ball("blue", 40), ball("blue", 120))
    assert verdicts("two red balls", *objects) == {"two": True, "red": False, "balls": True}
    assert verdicts("a small blue cup", *objects) == {
        **{"a": False, "small": False, "blue": False},
        "cup": False,
    }
    left = "a red ball is to the left of a blue cup"
    assert judge(left.split(), (*objects, ball("red", 20))).false_words == [6, 8, 9, 10]
    assert verdicts("a pair of blue balls", *objects)["pair"]
    assert not verdicts("a single blue ball", *objects)["single"]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a red ball left of a blue ball", True),
        ("a red ball is right of a blue ball", None),
        ("a red ball is on the right side of a blue ball", False),
        ("a blue ball is larger than a red ball", True),
        ("a red ball bigger than a blue ball", False),
        ("the largest of the two balls is blue", True),
        ("the largest of the two balls is red", False),
        ("one of the two balls is red", True),
        ("two of the two balls are red", False),
        ("a red ball between a blue ball and a green cup", False),
        ("someone drew a red ball plus", None),
        ("red ball", None),
        ("", None),
    ],
)
def test_a_caption_is_true_false_or_no_sentence(caption, expected):
    objects = (ball("red", 30), ball("blue", 110, size="large"))
    judgement = judge(caption.split(), objects)
    assert (judgement.is_true if judgement.is_sentence else None) is expected
    if expected is None:
        assert not judgement.is_true


def test_phrases_of_a_caption_without_pattern_are_judged():
    truth = judge(["a", "red", "ball", "ball", "and", "two", "blue", "cups"], (ball("red", 30),))
    assert not truth.is_sentence
    assert Statement("colour", (1,), True) in truth.statements
    assert truth.false_words == [5, 6, 7]


def test_objects_are_read_from_the_annotations(scenes, tmp_path):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(instances(scenes)))
    objects_of = read_scenes(path)
    assert objects_of.keys() == {scene.image_id for scene in scenes}
    for scene in scenes:
        read = objects_of[scene.image_id]
        assert [(o.category, o.colour, o.size, o.texture, o.box) for o in read] == [
            (o.category, o.colour, o.size, o.texture, o.box) for o in scene.objects
        ]


def test_other_annotations_are_rejected(scenes, tmp_path):
    document = instances(scenes[:1])
    document["annotations"][0]["attributes"] = ["red"]
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(document))
    category = scenes[0].objects[0].category
    assert message_of(read_scenes, path) == (
        f"not the objects of generated scenes: {str(path)!r} (annotations[0]: no object of a scene:"
        f" {category!r}, attributes ['red']); give instances.json of a2 scenes"
    )
    document["annotations"][0]["category_id"] = [1]
    path.write_text(json.dumps(document))
    assert "no object of a scene: None" in message_of(read_scenes, path)
