"""Archive for the COCO server: names, bytes, and the checks before it is written."""

import json
import shutil
import zipfile

import pytest

from a2cap.data.errors import ConfigError
from a2cap.data.files.json_file import read_json
from a2cap.pipeline.captioning import caption_stores as stored_captioning
from a2cap.pipeline.captioning.saved_captioner import LoadedCaptioner
from a2cap.pipeline.evaluation.coco_server import (
    TEST,
    VAL,
    check_name,
    check_output,
    read_image_info,
    write_submission,
)
from tests.data.messages import message_of, written
from tests.experiments import a2

VAL_IDS, TEST_IDS = [1, 3, 40], [2, 20]


def padded(*numbers):
    return [f"{number:012d}" for number in numbers]


IDS = {VAL: padded(*VAL_IDS), TEST: padded(*TEST_IDS)}
CAPTIONS = {server_set: dict.fromkeys(ids, "a dog") for server_set, ids in IDS.items()}


@pytest.fixture
def write(tmp_path):
    """Write JSON files into one folder and return their paths."""
    return lambda name, value: written(tmp_path, value, name)


@pytest.fixture
def infos(write):
    """Info files of both sets; that of val is a captions file, as downloaded."""
    val = [{"id": n, "file_name": f"COCO_val2014_{n:012d}.jpg"} for n in VAL_IDS]
    test = [{"id": n, "file_name": f"COCO_test2014_{n:012d}.jpg"} for n in TEST_IDS]
    return (
        write("captions_val2014.json", {"images": val, "annotations": []}),
        write("image_info_test2014.json", {"images": test}),
    )


def results(write, name, numbers, caption="a dog"):
    return write(name, [{"image_id": n, "caption": f"{caption} {n}"} for n in numbers])


@pytest.fixture
def submit(infos, tmp_path):
    """Run the command with both info files, into a2.zip."""

    def run(*arguments):
        named = ["--name", "a2", "--val-info", infos[0], "--test-info", infos[1]]
        return a2("submit", *named, "--output", tmp_path / "a2.zip", *arguments)

    return run


def error_of(answer, code=1):
    """Return the last line of a failed command's standard error."""
    assert answer.exit_code == code
    return answer.stderr.splitlines()[-1]


@pytest.fixture
def ready(write):
    """Options that name complete results files."""
    val, test = results(write, "v.json", VAL_IDS), results(write, "t.json", TEST_IDS)
    return ["--val-results", val, "--test-results", test]


def archived(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def captions_of(entries):
    return {entry["image_id"]: entry["caption"] for entry in entries}


# --- from results files ------------------------------------------------------------------------


def test_the_archive_has_the_name_in_the_current_folder_and_both_files(
    infos, ready, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    answer = a2(
        *("submit", "--name", "my-model_2", "--val-info", infos[0], "--test-info", infos[1]), *ready
    )
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout == "my-model_2.zip: captions 3 of val2014, 2 of test2014\n"
    assert archived("my-model_2.zip") == {
        f"captions_{server_set}_my-model_2_results.json": [
            {"image_id": n, "caption": f"a dog {n}"} for n in numbers
        ]
        for server_set, numbers in ((VAL, VAL_IDS), (TEST, TEST_IDS))
    }


def test_a_wrong_number_of_images_is_logged(infos, caplog):
    assert read_image_info(*infos) == IDS
    assert caplog.messages == [
        f"{infos[0]} has 3 images, the server's val2014 has 40,504; "
        "the server will reject this archive",
        f"{infos[1]} has 2 images, the server's test2014 has 40,775; "
        "the server will reject this archive",
    ]


@pytest.mark.slow
def test_the_server_s_number_of_images_is_not_logged(write, caplog):
    val = write("v.json", {"images": [{"id": n} for n in range(40_504)]})
    test = write("t.json", {"images": [{"id": n} for n in range(50_000, 90_775)]})
    ids = read_image_info(val, test)
    assert [len(ids[VAL]), len(ids[TEST])] == [40_504, 40_775]
    assert caplog.messages == []


def test_equal_captions_give_equal_bytes_in_any_order_and_script(tmp_path):
    captions = {VAL: {**CAPTIONS[VAL], IDS[VAL][0]: "Émile \U0001f415"}, TEST: CAPTIONS[TEST]}
    reordered = {key: dict(reversed(found.items())) for key, found in captions.items()}
    for name, found in [("one.zip", captions), ("other.zip", reordered)]:
        write_submission(tmp_path / name, "a2", found, IDS)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "other.zip").read_bytes()
    content = archived(tmp_path / "one.zip")["captions_val2014_a2_results.json"]
    assert content[0] == {"image_id": 1, "caption": "Émile \U0001f415"}
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.read("captions_val2014_a2_results.json").isascii()


def test_an_archive_is_replaced_only_by_force_and_atomically(submit, ready, write, tmp_path):
    archive = tmp_path / "a2.zip"
    archive.write_bytes(b"before")
    answer = submit(*ready)
    assert answer.exit_code == 2
    assert answer.stderr == (
        f"a2: {str(archive)!r} already exists; name another file, or use --force\n"
    )
    results(write, "t.json", [2])
    assert submit(*ready, "--force").exit_code == 1
    assert archive.read_bytes() == b"before"
    results(write, "t.json", TEST_IDS)
    assert submit(*ready, "--force").exit_code == 0
    assert len(archived(archive)) == 2
    assert not list(tmp_path.glob("*.partial")) + list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize(
    ("test_results", "message"),
    [
        (
            {2: "a"},
            "1 of 2 images of test2014 have no caption: 000000000020; caption them, the server "
            "rejects partial results",
        ),
        (
            dict.fromkeys([2, 20, 5, 6, 7, 8, 9, 10], "a"),
            "6 of 8 captions are of images that are not in test2014: 000000000005, 000000000006, "
            "000000000007, 000000000008, 000000000009 and 1 more; "
            "name the results of test2014",
        ),
        (
            {2: "a", 20: "a", "20": "a"},
            "1 images have more than one caption in {test}: 000000000020; "
            "keep one caption for each",
        ),
        ({2: "a", 20: ""}, "1 captions in {test} are empty: 000000000020; caption every image"),
    ],
)
def test_captions_of_other_images_are_rejected(submit, ready, write, test_results, message):
    entries = [{"image_id": n, "caption": caption} for n, caption in test_results.items()]
    test = write("t.json", entries)
    assert error_of(submit(*ready)).startswith(f"a2: {message.format(test=repr(str(test)))}")
    assert not list(test.parent.glob("*.zip"))


# --- names, paths and info files ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a b", "../a", "é", "-a", "_a", "a.b", "a\n", "0" * 51])
def test_invalid_names_are_rejected(name):
    for valid in ("a", "A2_ensemble-of-4", "0" * 50):
        check_name(valid)
    assert message_of(check_name, name, error=ConfigError) == (
        f"name cannot be part of the server's file names: {name!r}; use up to 50 of "
        "A-Z a-z 0-9 - _, a letter or digit first"
    )


def test_an_unusable_output_path_is_rejected(tmp_path):
    (tmp_path / "folder.zip").mkdir()
    for path in (tmp_path / "results.json", tmp_path / "folder.zip"):
        assert (
            message_of(check_output, path, force=True, error=ConfigError)
            == f"--output is not a zip file: {str(path)!r}; end its name in .zip"
        )
    assert message_of(
        check_output, tmp_path / "none" / "a.zip", force=False, error=ConfigError
    ) == (f"folder of --output not found: {str(tmp_path / 'none')!r}; create it first")


AS_DOWNLOADED = "give image_info_test2014.json or captions_val2014.json as downloaded"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "the file: not a JSON object"),
        ({"images": {}}, "the file: 'images' is not a list"),
        ({"images": [{"id": 1}, {}]}, "images[1]: no key 'id'"),
        ({"images": [{"id": True}]}, "images[0]: 'id' is not a number of up to 12 digits: True"),
        ({"images": [{"id": "7"}]}, "images[0]: 'id' is not a number of up to 12 digits: '7'"),
        (
            {"images": [{"id": 10**12}]},
            "images[0]: 'id' is not a number of up to 12 digits: 1000000000000",
        ),
        ({"images": [{"id": 7}, {"id": 7}]}, "images[1]: duplicate image 000000000007"),
        (
            {"images": [{"id": 7, "file_name": "COCO_test2014_000000000007.jpg"}]},
            "images[0]: 'COCO_test2014_000000000007.jpg' is an image of test2014",
        ),
    ],
)
def test_files_that_are_not_image_info_are_rejected(write, infos, document, problem):
    path = write("info.json", document)
    assert message_of(read_image_info, path, infos[1]) == (
        f"no image info of val2014 in {str(path)!r}: {problem}; {AS_DOWNLOADED}"
    )


def test_an_image_in_both_sets_is_rejected(write):
    val, test = (write(name, {"images": [{"id": 7}, {"id": 8}]}) for name in ("v.json", "t.json"))
    assert message_of(read_image_info, val, test) == (
        f"2 images are in both {str(val)!r} and {str(test)!r}: "
        "000000000007, 000000000008; name the info files of val2014 and test2014"
    )


def test_captions_come_from_exactly_one_source(submit, ready):
    for options in (
        [],
        ready[:2],
        ["--model", "m"],
        ["--features", "f"],
        [*ready, "--model", "m", "--features", "f"],
        [*ready, "--model", "m"],
    ):
        assert error_of(submit(*options), 2) == (
            "Error: captions come from --val-results and --test-results, or from --model and "
            "--features; name both options of one pair"
        )


# --- from a captioner --------------------------------------------------------------------------


@pytest.fixture
def trained(experiment):
    """Options that caption with the experiment's captioner and features."""
    model, store = experiment.directory("train-xe"), experiment.directory("extract")
    how = ["--beam-size", 2, "--device", "cpu"]
    return ["--model", model, "--features", store, *how]


def test_a_captioner_predicts_the_captions_of_its_evaluation(
    experiment, submit, trained, write, tmp_path
):
    predicted = captions_of(read_json(experiment.directory("evaluate") / "captions.json"))
    first, *others = predicted
    write("captions_val2014.json", {"images": [{"id": first}]})
    write("image_info_test2014.json", {"images": [{"id": n} for n in others]})
    answer = submit(*trained)
    assert answer.exit_code == 0, answer.stderr
    val, test = map(captions_of, archived(tmp_path / "a2.zip").values())
    assert (val, test) == ({first: predicted[first]}, {n: predicted[n] for n in others})


def test_the_top_scoring_nonempty_caption_is_submitted(submit, trained, tmp_path, monkeypatch):
    def decoded(*arguments, **how):
        for identity, (best, *others) in decode(*arguments, **how):
            yield identity, [type(best)("", 0.0), *others]

    decode = LoadedCaptioner.decode
    monkeypatch.setattr(LoadedCaptioner, "decode", decoded)
    assert submit(*trained).exit_code == 0
    captions = [
        c for entries in archived(tmp_path / "a2.zip").values() for c in captions_of(entries)
    ]
    assert sorted(captions) == sorted(VAL_IDS + TEST_IDS)
    monkeypatch.setattr(stored_captioning, "best_nonempty", lambda beams: beams[0].caption)
    assert error_of(submit(*trained, "--force")) == (
        "a2: 3 of 3 captions of val2014 are empty: 000000000001, 000000000003, 000000000040; "
        "give each at least one word"
    )


def test_images_without_features_are_reported_before_a_model_is_loaded(
    submit, trained, write, tmp_path
):
    write("image_info_test2014.json", {"images": [{"id": n} for n in (2, 91, 90)]})
    assert error_of(submit("--model", tmp_path, *trained[2:])) == (
        "a2: no features for 2 of 3 images of test2014: 000000000090, 000000000091; "
        'run "a2 extract" on them, and name its store too'
    )


def test_each_image_is_read_from_the_first_store_that_has_it(experiment):
    store = experiment.directory("extract") / "features.lmdb"
    expected = [(store, padded(2, 1))]
    for stores in ([store], [store.parent], [store.parent, store]):
        assert stored_captioning.locate_images(stores, padded(2, 1), what="x") == expected


@pytest.mark.slow
def test_features_of_another_extractor_are_rejected(experiment, submit, trained, tmp_path):
    store = shutil.copytree(experiment.directory("extract"), tmp_path / "store")
    (store / "manifest.json").unlink()  # with which changes would be damage
    metadata = json.loads((store / "extractor.json").read_text())
    metadata["libraries"] = {"torch": "9"}
    (store / "extractor.json").write_text(json.dumps(metadata))
    assert submit(*trained[:2], "--features", store, *trained[4:]).exit_code == 0
    metadata["config"]["confidence"] = 0.7
    metadata["weights_sha256"] = "0" * 64
    (store / "extractor.json").write_text(json.dumps(metadata))
    assert error_of(submit(*trained[:2], "--features", store, *trained[4:], "--force")) == (
        f"a2: features of {str(store)!r} and {str(trained[1])!r} come from different extractors "
        "(extractor.json differs in weights_sha256, config.confidence); "
        "extract with the model's weights and configuration"
    )


@pytest.mark.slow
def test_a_store_without_its_extractor_is_used_with_a_warning(
    experiment, submit, trained, tmp_path, caplog
):
    store = experiment.directory("extract") / "features.lmdb"
    alone = shutil.copytree(store, tmp_path / "alone" / "features.lmdb")
    assert submit(*trained[:2], "--features", alone, *trained[4:]).exit_code == 0
    warning = f"no extractor.json beside {alone}: its extractor is not checked"
    assert warning in caplog.messages
