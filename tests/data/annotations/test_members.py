"""Members of JSON objects and COCO, against lists and dictionaries of Python."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.annotations.carriers import coco
from a2cap.data.annotations.image_rows import ImageRow
from a2cap.data.annotations.members import Members
from a2cap.data.annotations.record import Fields, Reading
from a2cap.data.files.json_file import JsonObject, parse_json
from tests.data.messages import message_of


def members_of(document, size=7):
    """The members of a value as JSON, which comes in blocks of `size` characters."""
    text = document if isinstance(document, str) else json.dumps(document)
    blocks = [text[n : n + size] for n in range(0, len(text), size)]
    return Members(lambda: JsonObject(blocks, where="'x'"))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=3), v, max_size=3),
    max_leaves=15,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=5), st.integers(1, 40))
def test_the_members_of_an_object_are_those_that_json_has(document, size):
    read = {}
    for key, place, value in members_of(document, size=size):
        if place is None:
            read[key] = value
        else:
            read.setdefault(key, []).append(value)
    assert read == document


@pytest.mark.parametrize("size", range(1, 12))
def test_a_number_goes_on_in_the_next_block(size):
    document = {"version": 1.5, "a": [1e22, -2.5e-7], "b": 12}
    members = members_of(document, size=size)
    assert [value for *_, value in members] == [1.5, 1e22, -2.5e-7, 12]


TEXT = json.dumps({"images": [{"id": 1, "n": -1.5}, []], "é": "\\", "b": {"c": None}}, indent=1)


@pytest.mark.parametrize("position", range(1, len(TEXT)))
def test_a_damaged_object_has_the_error_of_a_whole_text(position):
    for text in (TEXT[:position], TEXT[:position] + "]" + TEXT[position:]):
        try:
            parse_json(text, where="'x'")
        except Exception as error:
            assert message_of(members_of, text) == str(error)
        else:
            assert [*members_of(text)]


def test_a_repeated_key_of_many_is_named():
    text = "{" + ",".join(f'"{n}": [1]' for n in [*range(2000), 1500, 1500, 3]) + "}"
    assert message_of(members_of, text) == "'x' has the key '1500' twice; keep one"


IDS = st.sampled_from([0, 1, -1, -2, 2**61 - 1, 2**70, "1", "a", True, None, 1.5])
IMAGES = st.lists(
    st.fixed_dictionaries({}, optional={"id": IDS, "file_name": st.sampled_from(["a.jpg", "b", 3])})
    | st.just(7),
    max_size=6,
)
CAPTIONS: st.SearchStrategy[list[object]] = st.lists(
    st.fixed_dictionaries(
        {"image_id": IDS},
        optional={"id": IDS, "caption": st.sampled_from("abc"), "is_rejected": st.booleans()},
    )
    | st.just([]),
    max_size=12,
)


def is_key(value):
    return isinstance(value, int | str) and not isinstance(value, bool)


def plain_coco(images, annotations):
    """The images of COCO and the skipped positions, by lists and dictionaries."""
    entries, captions, skipped, seen, rejected = {}, {}, [], set(), []
    for index, item in enumerate(images):
        name = item.get("file_name", item.get("id")) if isinstance(item, dict) else None
        is_file = isinstance(name, str) or (name is not None and name >= 0 and name != 3)
        is_number = isinstance(item, dict) and "file_name" not in item and isinstance(name, int)
        if not (isinstance(item, dict) and is_key(item.get("id")) and is_file):
            skipped.append(f"images[{index}]")
            continue
        file = f"{name:012d}.jpg" if is_number else name
        entries.setdefault(item["id"], []).append((f"images[{index}]", file))
    for index, item in enumerate(annotations):
        number = item.get("image_id") if item else None
        is_usable = item and is_key(number) and "caption" in item and number in entries
        is_rejected = is_usable and item.get("is_rejected")
        identity = item.get("id", (index,)) if is_usable else None
        if is_usable and not is_rejected and "id" in item:
            is_usable = is_key(identity) and identity not in seen
            seen |= {identity} if is_usable else set()
        if not is_usable:
            skipped.append(f"annotations[{index}]")
            continue
        texts = captions.setdefault(number, [])
        if is_rejected:
            rejected.append(f"annotations[{index}]")
        else:
            place = identity if isinstance(identity, int) else index
            texts.append((place, index, item["caption"]))
    read = []
    for number, named in entries.items():
        texts = sorted(captions.get(number, []))
        if len({file for _, file in named}) > 1:
            skipped += [position for position, _ in named]
        elif texts or number not in captions:
            order = min((index for _, index, _ in texts), default=0)
            listed = [text for *_, text in texts]
            read.append(ImageRow(*named[0], None, listed, number, number, order))
    return read, skipped if read else skipped + rejected


@given(IMAGES, CAPTIONS, st.booleans())
def test_coco_is_read_as_by_lists_whichever_list_comes_first(images, annotations, images_first):
    lists = [("images", images), ("annotations", annotations)]
    document = members_of(dict(lists if images_first else lists[::-1]))
    skipped = []
    read = [*coco(document, Reading(Fields(), lambda position, reason: skipped.append(position)))]
    assert (read, skipped) == plain_coco(images, annotations)
