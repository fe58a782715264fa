"""The tree of a data file: sound as LMDB writes it, and no damage of it can kill a reader."""

import os
import random
import struct

import lmdb
import pytest

from a2cap.data.features.lmdb_check import tree_problem

PAGE = 4096
RECORDS = {f"{number:012d}".encode(): bytes([number % 256]) * 3000 for number in range(400)}
SMALL = {f"s{number:04d}".encode(): b"short" for number in range(400)}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The bytes of a data file of two levels: values in pages of their own, and beside keys."""
    folder = tmp_path_factory.mktemp("tree")
    with (
        lmdb.open(os.fspath(folder), map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, value in (RECORDS | SMALL).items():
            transaction.put(key, value)
    return (folder / "data.mdb").read_bytes()


@pytest.fixture
def problem(tmp_path):
    """What is found in a data file of these bytes."""

    def look(content):
        (tmp_path / "data.mdb").write_bytes(content)
        return tree_problem(tmp_path / "data.mdb")

    return look


def changed(content, place, form, *values):
    """The bytes with other numbers at a place."""
    copy = bytearray(content)
    struct.pack_into(form, copy, place, *values)
    return bytes(copy)


def newer(content):
    """Where the newer of the first two pages begins."""
    first, second = (struct.unpack_from("<Q", content, page + 144)[0] for page in (0, PAGE))
    return 0 if first > second else PAGE


def number_at(content, place):
    return struct.unpack_from("<Q", content, place)[0]


def root(content):
    return number_at(content, newer(content) + 128)


def pages(content, kind):
    """Numbers of the pages of keys: 1 of branches, 2 of leaves; some may be free."""
    headers = ((n, struct.unpack_from("<QHH", content, n * PAGE)) for n in range(2, root(content)))
    return [n for n, (own, _, flags) in headers if (own, flags) == (n, kind)]


def test_the_tree_that_lmdb_writes_is_sound(sound, problem):
    assert struct.unpack_from("<H", sound, root(sound) * PAGE + 10) == (1,)
    assert problem(sound) is None


def test_a_tree_without_records_is_sound(tmp_path):
    lmdb.open(os.fspath(tmp_path / "empty")).close()
    assert tree_problem(tmp_path / "empty" / "data.mdb") is None


@pytest.mark.parametrize("records", [1, 3])
def test_a_tree_of_one_level_is_sound(tmp_path, records):
    with (
        lmdb.open(os.fspath(tmp_path)) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number in range(records):
            transaction.put(str(number).encode(), bytes(9000))
    assert tree_problem(tmp_path / "data.mdb") is None


def test_what_is_no_file_of_this_layout_is_left_to_lmdb(sound, problem):
    assert problem(changed(sound, 16, "<I", 7)) is None  # the mark of LMDB's files
    assert problem(changed(sound, 20, "<I", 2)) is None  # the version of the layout
    assert problem(changed(sound, 40, "<I", 1234)) is None  # the size of a page


def test_a_file_that_ends_within_its_first_pages_is_damaged(problem, sound):
    assert "unpack" in problem(sound[:100])


def test_a_file_that_is_shorter_than_what_is_in_use_is_damaged(sound, problem):
    last = (number_at(sound, newer(sound) + 136) + 1) * PAGE
    assert problem(sound[: last - 1]) == f"{last} bytes of it are in use, it has {last - 1}"


def test_another_kind_of_tree_is_damage(sound, problem):
    assert problem(changed(sound, newer(sound) + 92, "<H", 4)) == "its tree has flags 4"


def test_another_number_of_records_is_damage(sound, problem):
    place = newer(sound) + 120
    assert problem(changed(sound, place, "<Q", 801)) == "it holds 800 of 801 records"


@pytest.mark.parametrize("number", [0, 1, 10**6, 2**63])
def test_a_root_that_is_not_there_is_damage(sound, problem, number):
    assert problem(changed(sound, newer(sound) + 128, "<Q", number)) == (
        f"its tree leads to page {number}, which is not there"
    )


def test_a_tree_of_another_depth_is_damage(sound, problem):
    for depth in (0, 1, 3):
        found = problem(changed(sound, newer(sound) + 94, "<H", depth))
        assert found.endswith(" of its tree is not as it was written")


@pytest.mark.parametrize(
    ("place", "form", "values"),
    [
        (0, "<Q", [1]),  # its own number
        (10, "<H", [4]),  # what kind of page it is
        (12, "<HH", [16, 4096]),  # no nodes
        (12, "<HH", [21, 4096]),  # half a node
        (12, "<HH", [4000, 3000]),  # nodes where the list of them is
        (14, "<H", [5000]),  # nodes behind the end
        (16, "<H", [4095]),  # a node at the end
        (16, "<H", [2]),  # a node in the header
    ],
)
def test_a_damaged_page_is_named(sound, problem, place, form, values):
    for number in (root(sound), _a_leaf(sound)):
        found = problem(changed(sound, number * PAGE + place, form, *values))
        assert found == f"page {number} of its tree is not as it was written"


def _a_leaf(content):
    """The page that the first node of the root leads to."""
    start = root(content) * PAGE
    [node] = struct.unpack_from("<H", content, start + 16)
    return struct.unpack_from("<H", content, start + node)[0]


def _first_node(content, page):
    return page * PAGE + struct.unpack_from("<H", content, page * PAGE + 16)[0]


def test_a_key_longer_than_its_page_is_damage(sound, problem):
    for page in (root(sound), _a_leaf(sound)):
        found = problem(changed(sound, _first_node(sound, page) + 6, "<H", 5000))
        assert found == f"page {page} of its tree is not as it was written"


def test_a_value_that_lies_behind_the_end_is_damage(sound, problem):
    leaf = _a_leaf(sound)
    node = _first_node(sound, leaf)
    assert struct.unpack_from("<H", sound, node + 4) == (1,)  # its value is elsewhere
    damaged = f"page {leaf} of its tree is not as it was written"
    assert problem(changed(sound, node + 20, "<Q", 10**6)) == damaged
    assert problem(changed(sound, node + 20, "<Q", 0)) == damaged
    assert problem(changed(sound, node, "<HH", 0, 60_000)) == damaged
    assert problem(changed(sound, node + 4, "<H", 2)) == damaged


def test_no_changed_byte_of_the_tree_kills_a_reader(sound, tmp_path):
    """The damage that is not found here is found by LMDB, or by the record's own checksum."""
    chance = random.Random(0)
    numbers = [0, 1, root(sound), *pages(sound, 1), *pages(sound, 2)]
    survived = 0
    for _ in range(150):
        place = chance.choice(numbers) * PAGE + chance.randrange(PAGE)
        content = changed(sound, place, "<B", chance.randrange(256))
        (tmp_path / "data.mdb").write_bytes(content)
        if tree_problem(tmp_path / "data.mdb") is None:
            survived += 1
            assert os.waitstatus_to_exitcode(_read_all(tmp_path)) == 0
    assert survived > 50


def _read_all(folder):
    """How a process ends that reads every byte."""
    child = os.fork()
    if child == 0:
        try:
            environment = lmdb.open(os.fspath(folder), readonly=True, lock=False)
            with environment.begin(buffers=True) as transaction:
                for key in RECORDS | SMALL:
                    bytes(transaction.get(key) or b"")
                for _, value in transaction.cursor():
                    bytes(value)
        except lmdb.Error:
            pass
        os._exit(0)
    return os.waitpid(child, 0)[1]
