import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.identities import Identities, normal_key
from a2cap.data.image_ids import image_id, names_file, results_id
from tests.data.messages import message_of

PERMUTED = Identities(
    [("000000000001", 27), ("000000000027", 14), ("000000000014", 1), ("000000000050", 50)]
)
REMEDY = (
    "; set data.ids=annotation if these are ids of the annotations, data.ids=number if they are "
    "the numbers of files"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", True),
        ("a/b", True),
        ("COCO_val2014_000000000042", True),
        ("42", False),
        ("000000000042", False),
        ("a", False),
        ("a.b", False),
        ("COCO_42", False),
    ],
)
def test_a_suffix_a_folder_or_cocos_prefix_name_a_file(name, expected):
    assert names_file(name) is expected


@given(st.lists(st.integers(0, 10**12 - 1), unique=True, min_size=1), st.booleans())
def test_annotations_whose_ids_are_the_files_numbers_change_nothing(numbers, as_text):
    files = [f"{number:012d}" for number in numbers]
    identities = Identities(zip(files, map(str, numbers) if as_text else numbers, strict=True))
    assert not identities
    assert dict(identities.own_ids) == {}
    read = identities.reader("the features")
    for number, file in zip(numbers, files, strict=True):
        assert read(number) == read(str(number)) == read(f"COCO_val2014_{file}.jpg") == file
        assert identities.own_id(file) == number
    assert read("elsewhere/dog.jpg") == "elsewhere/dog"


OWN_IDS = st.one_of(
    st.integers(0, 2**40),
    st.integers(0, 60),
    st.from_regex(r"[a-z]{1,6}_[0-9]{1,4}", fullmatch=True),
)


@given(
    st.lists(OWN_IDS, unique_by=normal_key, min_size=2, max_size=30),
    st.sampled_from(["{}.jpg", "COCO_val2014_{:012d}.jpg", "photo-{}.png", "in/{}-a.jpg"]),
    st.randoms(use_true_random=False),
)
def test_an_image_has_one_identity_by_its_file_and_by_its_own_id(owns, pattern, random):
    files = [pattern.format(number) for number in range(1, len(owns) + 1)]
    images = list(zip(files, owns, strict=True))
    random.shuffle(images)
    ids = [image_id(file) for file, _ in images]
    identities = Identities(zip(ids, (own for _, own in images), strict=True))
    by_annotation = identities.reader("the results", prefer="annotation")
    for (file, own), identity in zip(images, ids, strict=True):
        assert identities.reader("the captions")(file) == identity
        assert by_annotation(own) == by_annotation(str(own)) == identity
        written = identities.own_id(identity)
        assert written == own if identities else normal_key(written) == normal_key(own)


def test_a_number_that_fits_two_images_is_rejected():
    read = PERMUTED.reader("features 'x.tsv'")
    assert message_of(read, 27) == (
        "features 'x.tsv' name an image 27, which the annotations give to the file "
        "'000000000001', while the file '000000000027' has id 14" + REMEDY
    )
    assert "'0027'" in message_of(read, "0027")
    assert read("50") == "000000000050"


def test_the_name_of_a_file_is_read_as_the_file():
    read = PERMUTED.reader("captions")
    assert read("000027.jpg") == read("COCO_val2014_000000000027") == "000000000027"


@pytest.mark.parametrize(
    ("numbers", "expected"), [("number", "000000000027"), ("annotation", "000000000001")]
)
def test_the_setting_decides_how_numbers_are_read(numbers, expected):
    own = [*PERMUTED.own_ids.items()]
    assert Identities(own, numbers=numbers).reader("features")(27) == expected
    assert PERMUTED.reader("results", prefer=numbers)("27") == expected
    other = "annotation" if numbers == "number" else "number"
    assert Identities(own, numbers=numbers).reader("results", prefer=other)(27) == expected


def test_an_id_that_the_annotations_lack_is_not_taken_for_a_file():
    identities = Identities([("000000000001", 101), ("000000000002", 102)], numbers="annotation")
    read = identities.reader("features")
    assert [read(101), read(1), read(3)] == ["000000000001", None, None]


@pytest.mark.parametrize(
    ("keys", "files"),
    [((101, "102"), ["000000000001", "000000000002"]), ((1, 2), ["000000000001", "000000000002"])],
)
def test_numbers_that_fit_in_one_way_need_no_setting(keys, files):
    identities = Identities([("000000000001", 101), ("000000000002", 102)])
    assert list(map(identities.reader("features"), keys)) == files


def test_keys_in_two_ways_are_rejected():
    # the annotations list some images alone, so no number fits two of them
    read = Identities([("000000000005", 12), ("000000000037", 8)]).reader("features 'x.tsv'")
    assert read(12) == "000000000005"
    assert read(999) == "000000000999"
    assert message_of(read, 5) == (
        "features 'x.tsv' name images in two ways: 12 is only an id of the annotations, 5 only the "
        "name of a file" + REMEDY
    )


def test_an_id_of_two_files_is_that_of_neither():
    identities = Identities([("a", 1), ("b", 1), ("c", 3)])
    read = identities.reader("features")
    assert [read(1), read(3)] == ["000000000001", "c"]  # the first of them is no image


def test_an_id_that_is_the_path_of_another_file_too_is_rejected():
    pairs = [("a/x", "b/y.jpg"), ("b/y", "c"), ("d/z", "a/x")]
    for key in ("b/y.jpg", "a/x"):
        assert message_of(Identities(pairs).reader("features"), key).endswith(REMEDY)
    read = {n: Identities(pairs, numbers=n).reader("x") for n in ("annotation", "number")}
    assert [read["annotation"](key) for key in ("b/y.jpg", "a/x", "c")] == ["a/x", "d/z", "b/y"]
    assert [read["number"](key) for key in ("b/y.jpg", "a/x", "d/z")] == ["b/y", "a/x", "d/z"]
    assert Identities(pairs).reader("features")("d/z.jpg") == "d/z"


def test_an_image_without_an_id_has_that_of_its_file():
    identities = Identities([("000000000007", None), ("dog", 3)])
    assert identities.own_id("000000000007") == results_id("000000000007") == 7
    assert identities.reader("features")(7) == "000000000007"


def test_ids_are_written_as_the_annotations_have_them():
    identities = Identities([("a", "0012"), ("b", 2**40), ("c", "x y")])
    assert [identities.own_id(file) for file in "abc"] == ["0012", 2**40, "x y"]


def test_an_id_that_no_file_can_have_is_an_id():
    identities = Identities([("a", "/abs"), ("b", "")])
    assert [identities.reader("results")(key) for key in ("/abs", "")] == ["a", "b"]
