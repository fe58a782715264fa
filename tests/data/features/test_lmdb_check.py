"""The check of LMDB files: intact as LMDB writes them, and no undetected damage kills a reader."""

import os
import random
import struct

import lmdb
import pytest

from a2cap.data.features.lmdb_check import find_damage

PAGE = 4096
RECORDS = {f"{number:012d}".encode(): bytes([number % 256]) * 3000 for number in range(400)}
SMALL = {f"s{number:04d}".encode(): b"short" for number in range(400)}


def write_tree(folder, records):
    """Write a data file with LMDB and return its bytes."""
    environment = lmdb.open(os.fspath(folder), map_size=1 << 24)
    with environment, environment.begin(write=True) as transaction:
        for key, value in records.items():
            transaction.put(key, value)
    return (folder / "data.mdb").read_bytes()


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """The bytes of a data file with two levels, with values in leaf and in overflow pages."""
    return write_tree(tmp_path_factory.mktemp("tree"), RECORDS | SMALL)


@pytest.fixture
def damage(tmp_path):
    """Return the damage found in a data file with these bytes."""

    def check(content):
        (tmp_path / "data.mdb").write_bytes(content)
        return find_damage(tmp_path / "data.mdb")

    return check


def changed(content, offset, form, *values):
    """Return the bytes with other numbers at an offset."""
    copy = bytearray(content)
    struct.pack_into(form, copy, offset, *values)
    return bytes(copy)


def newer(content):
    """Return the offset of the newer meta page."""
    first, second = (struct.unpack_from("<Q", content, page + 144)[0] for page in (0, PAGE))
    return 0 if first > second else PAGE


def number_at(content, offset):
    return struct.unpack_from("<Q", content, offset)[0]


def root(content):
    return number_at(content, newer(content) + 128)


def pages(content, kind):
    """Return the numbers of the pages of a kind: 1 branch, 2 leaf; some may be free."""
    headers = ((n, struct.unpack_from("<QHH", content, n * PAGE)) for n in range(2, root(content)))
    return [n for n, (own, _, flags) in headers if (own, flags) == (n, kind)]


def test_a_tree_written_by_lmdb_is_intact(intact, damage):
    assert struct.unpack_from("<H", intact, root(intact) * PAGE + 10) == (1,)
    assert damage(intact) is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_tree_of_at_most_one_level_is_intact(tmp_path, count):
    write_tree(tmp_path, {str(number).encode(): bytes(9000) for number in range(count)})
    assert find_damage(tmp_path / "data.mdb") is None


def test_files_of_another_layout_are_left_to_lmdb(intact, damage):
    assert damage(changed(intact, 16, "<I", 7)) is None  # magic number
    assert damage(changed(intact, 20, "<I", 2)) is None  # version
    assert damage(changed(intact, 40, "<I", 1234)) is None  # page size


def test_a_file_shorter_than_its_used_pages_is_damaged(intact, damage):
    last = (number_at(intact, newer(intact) + 136) + 1) * PAGE
    assert damage(intact[: last - 1]) == f"{last} bytes of it are in use, it has {last - 1}"
    assert "unpack" in damage(intact[:100])  # in its meta pages


def test_a_wrong_meta_page_is_damage(intact, damage):
    meta = newer(intact)
    assert damage(changed(intact, meta + 92, "<H", 4)) == "its tree has flags 4"
    assert damage(changed(intact, meta + 120, "<Q", 801)) == "it holds 800 of 801 records"
    for depth in (0, 1, 3):
        reason = damage(changed(intact, meta + 94, "<H", depth))
        assert reason.endswith(" of its tree is corrupt")


def test_a_missing_root_is_damage(intact, damage):
    after_the_last = number_at(intact, newer(intact) + 136) + 1
    for number in (0, 1, after_the_last, 10**6, 2**63):
        reason = damage(changed(intact, newer(intact) + 128, "<Q", number))
        assert reason == f"its tree refers to page {number}, which does not exist"


def test_pages_beyond_256_mebibytes_are_read(intact, tmp_path):
    child = 70_000  # of a branch, in two fields of 16 bits
    leaf, node = _a_leaf(intact), _first_node(intact, root(intact))
    content = changed(intact, newer(intact) + 136, "<Q", child)
    content = changed(content, node, "<HHH", child % 2**16, child // 2**16, 0)
    with (tmp_path / "data.mdb").open("wb") as file:
        file.write(content)
        file.seek(child * PAGE)
        file.write(changed(intact[leaf * PAGE : (leaf + 1) * PAGE], 0, "<Q", child))
    assert find_damage(tmp_path / "data.mdb") is None


@pytest.mark.parametrize(
    ("offset", "form", "values"),
    [
        (0, "<Q", [1]),  # page number
        (10, "<H", [4]),  # kind of page
        (12, "<HH", [16, 4096]),  # no nodes
        (12, "<HH", [21, 4096]),  # half a node
        (12, "<HH", [4000, 3000]),  # nodes in the list of offsets
        (14, "<H", [5000]),  # nodes beyond the end
        (16, "<H", [4095]),  # a node at the end
        (16, "<H", [2]),  # a node in the header
        (None, "<H", [5000]),  # a key longer than its page
    ],
)
def test_a_damaged_page_is_named(intact, damage, offset, form, values):
    for number in (root(intact), _a_leaf(intact)):
        start = _first_node(intact, number) + 6 if offset is None else number * PAGE + offset
        reason = damage(changed(intact, start, form, *values))
        assert reason == f"page {number} of its tree is corrupt"


def _a_leaf(content):
    """Return the page of the first node of the root."""
    return struct.unpack_from("<H", content, _first_node(content, root(content)))[0]


def _first_node(content, page):
    return page * PAGE + struct.unpack_from("<H", content, page * PAGE + 16)[0]


def test_a_value_beyond_the_end_is_damage(intact, damage):
    leaf = _a_leaf(intact)
    node = _first_node(intact, leaf)
    assert struct.unpack_from("<H", intact, node + 4) == (1,)  # its value is in overflow pages
    changes = [(20, "<Q", 10**6), (20, "<Q", 0), (0, "<HH", 0, 60_000), (4, "<H", 2)]
    for offset, form, *values in changes:
        reason = damage(changed(intact, node + offset, form, *values))
        assert reason == f"page {leaf} of its tree is corrupt"


@pytest.mark.slow
def test_no_changed_byte_of_the_tree_kills_a_reader(intact, tmp_path):
    """LMDB or the checksum of the record detects the damage that this check does not."""
    chance = random.Random(0)
    numbers = [0, 1, root(intact), *pages(intact, 1), *pages(intact, 2)]
    survived = 0
    for _ in range(150):
        offset = chance.choice(numbers) * PAGE + chance.randrange(PAGE)
        content = changed(intact, offset, "<B", chance.randrange(256))
        (tmp_path / "data.mdb").write_bytes(content)
        if find_damage(tmp_path / "data.mdb") is None:
            survived += 1
            assert os.waitstatus_to_exitcode(_read_all(tmp_path)) == 0
    assert survived > 50


def _read_all(folder):
    """Return the wait status of a process that reads every byte."""
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
