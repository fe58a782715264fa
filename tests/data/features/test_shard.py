"""Shards: every image belongs to exactly one, the same in every process and on every machine."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.errors import ConfigError
from a2cap.data.features.shard import Shard, complete_shards, owner, shards_in
from tests.data.features.stores import refusal
from tests.data.messages import message_of

image_ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@given(image_ids, st.integers(1, 200))
def test_every_image_belongs_to_exactly_one_shard(image_id, count):
    owners = [number for number in range(count) if Shard(number, count).owns(image_id)]
    assert owners == [owner(image_id, count)]


def test_shards_are_of_about_equal_size():
    ids = [f"{number:012d}" for number in range(8000)]
    sizes = [sum(Shard(number, 8).owns(image_id) for image_id in ids) for number in range(8)]
    assert all(900 < size < 1100 for size in sizes)


def test_the_assignment_is_stable_across_processes_and_versions():
    # the last digit of `printf %s ID | sha256sum`, modulo 8
    known = {"000000000139": 0, "000000391895": 5, "own/straße": 7}
    assert {image_id: owner(image_id, 8) for image_id in known} == known
    code = "from a2cap.data.features.shard import owner; print(owner('000000391895', 8))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(answer.stdout) == known["000000391895"]


@pytest.mark.slow
@given(st.integers(1, 99_999).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_parsing_inverts_formatting(numbers):
    shard = Shard(*numbers)
    assert Shard.parse(str(shard)) == shard


@pytest.mark.parametrize("text", ["4/4", "0/0", "1", "1/", "/2", "-1/4", "a/b", "1/2/3", "½/2", ""])
def test_other_texts_are_refused(text):
    assert message_of(Shard.parse, text, error=ConfigError) == (
        f"shard is {text!r}; write i/N with i from 0 to N - 1, such as 0/4"
    )


def test_shards_are_found_by_their_folders_in_order(tmp_path):
    shards = [Shard(number, 11) for number in range(11)]
    assert Shard(3, 8).folder == "shard-00003-of-00008"
    for name in (*(shard.folder for shard in shards), "shard-1-of-2", "other"):
        (tmp_path / name).mkdir()
    assert shards_in(tmp_path) == complete_shards(tmp_path) == shards


def test_a_missing_store_has_no_shards(tmp_path):
    assert shards_in(tmp_path / "none") == complete_shards(tmp_path) == []


def test_missing_shards_are_named(tmp_path):
    for shard in (Shard(0, 4), Shard(2, 4)):
        (tmp_path / shard.folder).mkdir()
    assert refusal(complete_shards, tmp_path) == (
        f"shards 1/4, 3/4 of {str(tmp_path)!r} are missing; "
        'copy them there, or run "a2 extract --shard" for each'
    )


def test_shards_of_different_totals_overlap(tmp_path):
    for shard in (Shard(0, 1), Shard(1, 4), Shard(0, 2)):
        (tmp_path / shard.folder).mkdir()
    assert refusal(complete_shards, tmp_path) == (
        f"{str(tmp_path)!r} contains shards of 1 and of 2 and of 4, "
        "which overlap; keep the shards of one number"
    )
