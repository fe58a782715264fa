"""Predicted relations: a file of them, added to stored regions, and what is rejected."""

import json
from dataclasses import replace

import numpy as np
import pytest

from a2cap.data.batches.collate import Item, collate
from a2cap.data.errors import InputError
from a2cap.data.features.feature_record import decode_regions, encode_regions
from a2cap.data.features.relation_file import RelationFile, write_relations
from a2cap.data.regions import top_scoring
from tests.data.features.stores import make_regions, refusal
from tests.data.messages import message_of

UNREADABLE = ": they need the keys regions, a number, and relations, rows of three whole numbers"
ROWS = [[0, 2, 1], [2, 0, 3], [1, 2, 2]]


@pytest.fixture
def write(tmp_path):
    def written(entry, labels=3):
        path = tmp_path / "relations.json"
        path.write_text(json.dumps({"labels": labels, "images": {"7": entry}}))
        return path

    return written


def added(path, count=3):
    return RelationFile.read(path).add("7", make_regions("7", count=count))


@pytest.mark.parametrize("rows", [ROWS, []])
def test_a_file_is_added_stored_and_written_again(write, rows, tmp_path):
    entry = {"regions": 3, "relations": rows}
    regions = added(write(entry))
    stored = decode_regions(encode_regions(regions, "float32"), "7")
    assert stored.relations.tolist() == rows
    assert stored.relations.shape == (len(rows), 3)
    assert write_relations(tmp_path / "again.json", [("7", stored)]) == 1
    again = json.loads((tmp_path / "again.json").read_text())
    assert again == {"labels": 3 if rows else 1, "images": {"7": entry}}


def test_regions_that_are_left_out_take_their_relations_with_them(write):
    regions = replace(
        added(write({"regions": 3, "relations": ROWS})), scores=np.array([0.9, 0.1, 0.5], "f")
    )
    assert top_scoring(regions, 2).relations.tolist() == [[0, 1, 1], [1, 0, 3]]


def test_a_batch_has_the_label_of_each_region_to_each(write):
    regions = added(write({"regions": 3, "relations": ROWS}))
    alone = make_regions("8", count=4)
    batch = collate([Item("7", regions, None), Item("8", alone, None)])
    assert batch.boxes.shape == (2, 4, 10)
    expected = [[0, 0, 0, 1, 0], [1, 0, 0, 2, 0], [2, 3, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert batch.boxes[0, :, 5:].tolist() == expected
    assert batch.boxes[1, :, 5].tolist() == [0, 1, 2, 3]
    assert not batch.boxes[1, :, 6:].any()  # no edge
    assert collate([Item("8", alone, None)]).boxes.shape == (1, 4, 5)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"regions": 4, "relations": ROWS},
            " are of 4 regions, the features have 3; predict them for the stored regions",
        ),
        (
            {"regions": 3, "relations": [[0, 3, 1]]},
            ": region 3 of 3; predict relations for the stored regions",
        ),
        (
            {"regions": 3, "relations": [[-1, 2, 1]]},
            ": region -1 of 3; predict relations for the stored regions",
        ),
        ({"regions": 3, "relations": [[1, 1, 1]]}, ": region 1 has one to itself; remove it"),
        ({"regions": 3, "relations": [[0, 1, 4]]}, ": label 4; labels count from 1 to 3"),
        ({"regions": 3, "relations": [[0, 1, 0]]}, ": label 0; labels count from 1 to 3"),
        (
            {"regions": 3, "relations": [[0, 1, 1], [0, 1, 2]]},
            ": a pair of regions has two labels; keep the most probable one",
        ),
        (
            {"regions": 3, "relations": [[0, 1]]},
            ": they have shape (1, 2), expected (E, 3); give a subject, an object and a label each",
        ),
        ([], UNREADABLE),
        ({"regions": 3}, UNREADABLE),
        ({"regions": 3, "relations": [[0, 1, 1.5]]}, UNREADABLE),
        ({"regions": 3, "relations": [[0, 1, 1], [0]]}, UNREADABLE),
        ({"regions": 3, "relations": 5}, UNREADABLE),
        ({"regions": 3, "relations": [[0, 1, 10**30]]}, UNREADABLE),
    ],
)
def test_relations_of_other_regions_are_rejected(write, entry, problem):
    path = write(entry)
    assert message_of(added, path) == f"relations of image '7' in {str(path)!r}{problem}"


def test_an_image_without_relations_is_named(write):
    path = write({"regions": 3, "relations": []})
    with pytest.raises(InputError) as raised:
        RelationFile.read(path).add("8", make_regions("8", count=3))
    assert str(raised.value) == f"no relations of image '8' in {str(path)!r}"


def test_a_file_of_another_layout_and_regions_without_relations_are_rejected(tmp_path):
    path = tmp_path / "other.json"
    for content in ([], {"images": {}}, {"labels": 0, "images": {}}, {"labels": 3, "images": []}):
        path.write_text(json.dumps(content))
        assert message_of(RelationFile.read, path) == (
            f"{str(path)!r} has no relations: it needs the keys labels, a number, and images; "
            "docs/guide/features.md has the layout"
        )
    assert message_of(write_relations, path, [("7", make_regions("7"))]) == (
        "no image has relations; add some with a2 convert --relations FILE"
    )
    wrong = replace(make_regions("7", count=2), relations=np.array([[0, 2, 1]], np.int32))
    assert refusal(encode_regions, wrong, "float32", "7") == (
        "relations of image '7': region 2 of 2; predict relations for the stored regions"
    )
