import errno
import hashlib
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest

from a2cap.data.errors import StoreError
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.regions import Regions

IDS = [f"{number:012d}" for number in range(12)]


def make_regions(image_id, count=3, width=8):
    draw = np.random.default_rng([ord(letter) for letter in image_id])
    return Regions(
        boxes=draw.uniform(0, 100, (count, 4)).astype(np.float32),
        features=draw.normal(size=(count, width)).astype(np.float32),
        scores=draw.uniform(size=count).astype(np.float32),
        class_ids=draw.integers(0, 1600, count).astype(np.int32),
        attribute_ids=None,
        width=640,
        height=480,
    )


def write(path, ids, *, sealed=True, **options):
    with FeatureWriter(path, **options) as writer:
        for image_id in ids:
            writer.add(image_id, make_regions(image_id))
        return writer.seal() if sealed else None


def test_a_sealed_store_gives_back_every_image(tmp_path):
    seal = write(tmp_path / "features.lmdb", IDS, dtype="float32")
    store = FeatureStore(tmp_path / "features.lmdb")
    assert list(store) == IDS
    for image_id in IDS:
        np.testing.assert_array_equal(store[image_id].features, make_regions(image_id).features)
    assert (seal.count, seal.feature_width, seal.dtype) == (12, 8, "float32")


def test_features_are_stored_as_float16_unless_asked_otherwise(tmp_path):
    write(tmp_path / "s", IDS[:1])
    assert FeatureStore(tmp_path / "s")[IDS[0]].features.dtype == np.float16


def test_the_seal_describes_the_data_file(tmp_path):
    path = tmp_path / "s"
    with FeatureWriter(path) as writer:
        writer.add("1", make_regions("1"))
        seal = writer.seal({"extractor": "abc"})
    data = (path / "data.mdb").read_bytes()
    assert seal.bytes == len(data)
    assert seal.file_sha256 == hashlib.sha256(data).hexdigest()
    assert seal.extra == {"extractor": "abc"}
    assert json.loads((path / "seal.json").read_text()) == seal.model_dump(mode="json")
    assert sorted(file.name for file in path.iterdir()) == ["data.mdb", "lock.mdb", "seal.json"]


def test_the_digest_does_not_depend_on_order_commits_or_resumes(tmp_path):
    digests = {write(tmp_path / "plain", IDS).digest}
    digests.add(write(tmp_path / "backwards", reversed(IDS), commit_every=1).digest)
    write(tmp_path / "resumed", IDS[7:], sealed=False, commit_every=2)
    digests.add(write(tmp_path / "resumed", IDS[:7], map_size=1 << 20).digest)
    assert len(digests) == 1
    assert write(tmp_path / "fewer", IDS[1:]).digest not in digests
    assert write(tmp_path / "exact", IDS, dtype="float32").digest not in digests


def test_the_digest_of_nothing_is_the_sha256_of_nothing(tmp_path):
    # FIPS 180-4, the digest of the empty message
    seal = write(tmp_path / "s", [])
    assert seal.digest == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert list(FeatureStore(tmp_path / "s")) == []


def test_what_is_done_includes_earlier_runs_and_what_is_not_yet_committed(tmp_path):
    write(tmp_path / "s", IDS[:3], sealed=False)
    with FeatureWriter(tmp_path / "s") as writer:
        writer.add(IDS[3], make_regions(IDS[3]))
        assert writer.done() == set(IDS[:4])
        assert len(writer) == 4
        assert IDS[0] in writer and IDS[3] in writer and IDS[4] not in writer


def test_changing_the_set_of_what_is_done_changes_nothing(tmp_path):
    with FeatureWriter(tmp_path / "s") as writer:
        writer.done().add("1")
        assert "1" not in writer


def stored_now(path):
    """Keys that another process sees at this moment."""
    script = (
        "import lmdb, sys\n"
        "with lmdb.open(sys.argv[1], readonly=True).begin() as t:\n"
        "    print(t.stat()['entries'])"
    )
    return int(subprocess.check_output([sys.executable, "-c", script, str(path)]))


def test_every_so_many_images_are_committed(tmp_path):
    with FeatureWriter(tmp_path / "s", commit_every=4) as writer:
        for image_id in IDS[:7]:
            writer.add(image_id, make_regions(image_id))
        assert stored_now(tmp_path / "s") == 4
        writer.flush()
        assert stored_now(tmp_path / "s") == 7


def test_a_slow_extraction_commits_by_time(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with FeatureWriter(tmp_path / "s", commit_seconds=30) as writer:
        writer.add("1", make_regions("1"))
        now[0] += 30
        writer.add("2", make_regions("2"))
        assert stored_now(tmp_path / "s") == 2


@pytest.mark.parametrize(
    ("commit_every", "commits"), [(1, {1, 2, 3, 4, 5, 6, 7, 8}), (5, {5, 8})], ids=["1", "5"]
)
def test_a_map_that_is_full_at_every_commit_grows_and_loses_nothing(
    tmp_path, monkeypatch, commit_every, commits
):
    grown = []
    double = FeatureWriter._double_map
    monkeypatch.setattr(
        FeatureWriter, "_double_map", lambda self: (grown.append(len(self)), double(self))
    )
    path = tmp_path / "s"
    with FeatureWriter(path, map_size=1 << 14, commit_every=commit_every) as writer:
        for number in range(8):
            # each image is as large as all before it, so that every commit outgrows the map
            regions = make_regions(str(number), count=1 << number, width=4096)
            writer.add(str(number), regions)
        seal = writer.seal()
    assert set(grown) == commits
    reference = tmp_path / "reference"
    with FeatureWriter(reference) as writer:
        for number in range(8):
            writer.add(str(number), make_regions(str(number), count=1 << number, width=4096))
        assert writer.seal().digest == seal.digest


def test_an_exception_commits_what_was_added(tmp_path):
    with pytest.raises(KeyboardInterrupt), FeatureWriter(tmp_path / "s") as writer:
        writer.add("1", make_regions("1"))
        raise KeyboardInterrupt
    with FeatureWriter(tmp_path / "s") as writer:
        assert writer.done() == {"1"}


def test_a_refused_image_leaves_the_writer_usable(tmp_path):
    bad = make_regions("1")
    bad.features[0, 0] = np.nan
    with FeatureWriter(tmp_path / "s") as writer:
        with pytest.raises(StoreError, match="feature of image '1' is not finite: nan; check"):
            writer.add("1", bad)
        assert "1" not in writer
        writer.add("1", make_regions("1"))
        assert writer.seal().count == 1


def test_an_id_is_added_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "features.lmdb", ["1"], sealed=False)
    with FeatureWriter(Path("features.lmdb")) as writer, pytest.raises(StoreError) as raised:
        writer.add("1", make_regions("1"))
    assert str(raised.value) == (
        "image '1' is already in 'features.lmdb'; give every image an id of its own"
    )


@pytest.mark.parametrize("resumed", [False, True])
def test_all_images_have_one_region_width(tmp_path, resumed):
    path = tmp_path / "s"
    write(path, ["1"], sealed=False) if resumed else None
    with FeatureWriter(path) as writer:
        if not resumed:
            writer.add("1", make_regions("1"))
        with pytest.raises(StoreError) as raised:
            writer.add("2", make_regions("2", width=9))
    assert str(raised.value) == (
        f"region width of image '2' is 9, of {str(path)!r} 8; extract all images with one extractor"
    )


def test_a_store_is_resumed_with_its_own_dtype(tmp_path):
    path = tmp_path / "s"
    write(path, ["1"], sealed=False)
    for _ in range(2):  # a refusal does not leave the store open
        with pytest.raises(StoreError) as raised:
            FeatureWriter(path, dtype="float32")
        assert str(raised.value) == (
            f"features of {str(path)!r} are float16, asked for float32; "
            'go on with float16, or run "a2 extract --force"'
        )


def test_a_sealed_store_is_not_written_to(tmp_path):
    path = tmp_path / "s"
    write(path, ["1"])
    with pytest.raises(StoreError) as raised:
        FeatureWriter(path)
    assert str(raised.value) == (
        f"{str(path)!r} is sealed, nothing can be added; "
        'read it, or run "a2 extract --force" to make it again'
    )


def test_after_sealing_nothing_is_added(tmp_path):
    path = tmp_path / "s"
    with FeatureWriter(path) as writer:
        writer.seal()
        with pytest.raises(StoreError) as raised:
            writer.add("1", make_regions("1"))
    assert str(raised.value) == f"{str(path)!r} is closed; open it again to write"
    assert "1" not in writer


def test_a_place_that_is_no_folder_is_refused(tmp_path):
    path = tmp_path / "s"
    path.write_text("a file")
    with pytest.raises(StoreError) as raised:
        FeatureWriter(path)
    assert str(raised.value).startswith(f"cannot open {str(path)!r} for writing: ")
    assert str(raised.value).endswith("; choose another place or mend this one")


def test_an_unsealed_store_that_was_truncated_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "s"
    write(path, IDS, sealed=False)
    size = (path / "data.mdb").stat().st_size
    os.truncate(path / "data.mdb", size - 4096)
    with pytest.raises(StoreError) as raised:
        FeatureWriter(path)
    assert str(raised.value) == (
        f"{str(path)!r} is truncated: {size - 4096} bytes of {size}; "
        'run "a2 extract --force" to make it again'
    )


def test_an_unsealed_store_whose_tree_is_damaged_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "s"
    write(path, IDS, sealed=False)
    data = bytearray((path / "data.mdb").read_bytes())
    data[2 * 4096 :] = bytes(len(data) - 2 * 4096)
    (path / "data.mdb").write_bytes(data)
    with pytest.raises(StoreError) as raised:
        FeatureWriter(path)
    assert re.fullmatch(
        rf"{re.escape(repr(str(path)))} is damaged: page \d+ of its tree is not as it was written; "
        'run "a2 extract --force" to make it again',
        str(raised.value),
    )


def test_sealing_refuses_a_record_that_was_damaged_on_the_disk(tmp_path):
    path = tmp_path / "s"
    write(path, ["41", "42"], sealed=False, dtype="float32")
    flip_byte_of(path / "data.mdb", make_regions("42").features.tobytes())
    writer = FeatureWriter(path, dtype="float32")
    with writer, pytest.raises(StoreError, match="record of image '42' is damaged: checksum"):
        writer.seal()
    assert not (path / "seal.json").exists()


def flip_byte_of(file, content):
    data = bytearray(file.read_bytes())
    data[data.index(content) + 10] ^= 1
    file.write_bytes(data)


DISK_FULL = """
    import resource, sys
    from pathlib import Path
    import numpy as np
    from a2cap.data.errors import StoreError
    from a2cap.data.features.writer import FeatureWriter
    from a2cap.data.regions import Regions

    path = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    def regions(number):
        ones = np.ones((10, 1000), np.float32) * number
        return Regions(ones[:, :4], ones, ones[:, 0], ones[:, 0].astype(np.int32), None, 5, 5)
    try:
        with FeatureWriter(path, commit_every=2) as writer:
            for number in range(100):
                writer.add(str(number), regions(number))
    except StoreError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with FeatureWriter(path) as writer:
        print(len(writer))
        for number in range(100):
            if str(number) not in writer:
                writer.add(str(number), regions(number))
        print(writer.seal().count)
"""


def run_script(script, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_a_full_disk_says_what_is_kept_and_the_next_run_goes_on(tmp_path):
    message, kept, count = run_script(DISK_FULL, tmp_path / "s").stdout.splitlines()
    assert message == (
        f"cannot write {str(tmp_path / 's')!r}: the disk is full or fails; "
        f"{kept} images are kept, make room and run again to resume"
    )
    assert 2 <= int(kept) < 20
    assert int(count) == 100


class RefusingEnvironment:
    """Stands in for LMDB's, whose failures on a real disk cannot be made everywhere."""

    def __init__(self, environment, code):
        self._environment = environment
        self._error = lmdb.Error("mdb_txn_commit: refused")
        self._error.code = code

    def begin(self, *, write=False):
        if write:
            raise self._error
        return self._environment.begin()

    def close(self):
        self._environment.close()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EFBIG, "the limit on file sizes is reached"),
        (errno.EIO, "the disk is full or fails"),
        (errno.EPERM, "mdb_txn_commit: refused"),
    ],
)
def test_what_the_disk_refuses_is_said_in_words(tmp_path, code, reason):
    writer = FeatureWriter(tmp_path / "s")
    writer.add("1", make_regions("1"))
    writer.flush()
    writer.add("2", make_regions("2"))
    real = writer._environment
    writer._environment = RefusingEnvironment(real, code)
    with pytest.raises(StoreError) as raised:
        writer.flush()
    assert str(raised.value) == (
        f"cannot write {str(tmp_path / 's')!r}: {reason}; "
        "1 images are kept, make room and run again to resume"
    )
    writer._environment = real
    assert writer.seal().count == 2  # what was refused is still in memory


def test_a_full_disk_is_an_error_also_where_the_writer_is_left(tmp_path):
    with pytest.raises(StoreError) as raised, FeatureWriter(tmp_path / "s") as writer:
        writer.add("1", make_regions("1"))
        writer._environment = RefusingEnvironment(writer._environment, errno.ENOSPC)
    assert str(raised.value) == (
        f"cannot write {str(tmp_path / 's')!r}: the disk is full; "
        "0 images are kept, make room and run again to resume"
    )


def test_a_map_that_cannot_grow_is_said_in_words(tmp_path, monkeypatch):
    writer = FeatureWriter(tmp_path / "s", map_size=1 << 14)
    writer.add("1", make_regions("1", count=64, width=4096))
    monkeypatch.setattr(writer, "_environment", NarrowEnvironment(writer._environment))
    with pytest.raises(StoreError) as raised:
        writer.flush()
    assert str(raised.value) == (
        f"cannot write {str(tmp_path / 's')!r}: mdb_env_set_mapsize: Cannot allocate memory; "
        "0 images are kept, make room and run again to resume"
    )


class NarrowEnvironment:
    """LMDB's environment where the process may take no more addresses (`ulimit -v`)."""

    def __init__(self, environment):
        self._environment = environment

    def set_mapsize(self, size):
        raise lmdb.Error("mdb_env_set_mapsize: Cannot allocate memory")

    def __getattr__(self, name):
        return getattr(self._environment, name)


def test_the_first_error_is_the_one_that_is_raised(tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt), caplog.at_level(logging.WARNING):  # noqa: SIM117
        with FeatureWriter(tmp_path / "s") as writer:
            writer.add("1", make_regions("1"))
            writer._environment = RefusingEnvironment(writer._environment, errno.ENOSPC)
            raise KeyboardInterrupt
    assert [record.message for record in caplog.records] == [
        f"cannot write {str(tmp_path / 's')!r}: the disk is full; "
        "0 images are kept, make room and run again to resume"
    ]


def test_a_seal_that_cannot_be_written_leaves_the_store_unsealed(tmp_path):
    path = tmp_path / "s"
    (path / ".seal.json.partial").mkdir(parents=True)
    with pytest.raises(StoreError) as raised:
        write(path, ["1"])
    assert str(raised.value).startswith(f"cannot write {str(path)!r}: ")
    assert str(raised.value).endswith("; 1 images are kept, make room and run again to resume")
    (path / ".seal.json.partial").rmdir()
    assert write(path, []).count == 1


KILLED = """
    import sys
    from pathlib import Path
    import numpy as np
    from a2cap.data.features.writer import FeatureWriter
    from a2cap.data.regions import Regions

    def regions(number):
        draw = np.random.default_rng(number)
        ones = draw.normal(size=(20, 500)).astype(np.float32)
        return Regions(ones[:, :4], ones, ones[:, 0], np.arange(20, dtype=np.int32), None, 5, 5)
    with FeatureWriter(Path(sys.argv[1]), map_size=1 << 20, commit_every=8) as writer:
        for number in range(300):
            if str(number) not in writer:
                writer.add(str(number), regions(number))
                if len(writer) % 8 == 0:
                    writer.flush()
                    print("kept", len(writer), flush=True)
        print("digest", writer.seal().digest, flush=True)
"""


def kill_after(path, commits, delay):
    """Run the writer until it has said so many commits, wait, kill it; the last count it said."""
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for _ in range(commits):
            child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        said = child.stdout.read().splitlines()
    counts = [int(line.split()[1]) for line in said if line.startswith("kept")]
    return max(counts, default=8 * commits)


@pytest.mark.slow
def test_kill_9_loses_no_committed_image_and_the_rerun_has_the_same_digest(tmp_path):
    reference = run_script(KILLED, tmp_path / "reference").stdout.splitlines()[-1]
    chance = random.Random(0)
    resumed = []
    for run in range(8):
        path = tmp_path / f"killed-{run}"
        acknowledged = kill_after(path, chance.randint(1, 30), chance.uniform(0, 0.02))
        if not (path / "seal.json").exists():
            with FeatureWriter(path) as writer:
                assert len(writer) >= acknowledged
            resumed.append(run_script(KILLED, path).stdout.splitlines()[-1])
    assert len(resumed) >= 4  # the others had finished before the kill
    assert set(resumed) == {reference}


def test_regions_that_share_memory_with_their_caller_are_copied_when_added(tmp_path):
    regions = make_regions("1")
    expected = replace(regions, features=regions.features.copy())
    with FeatureWriter(tmp_path / "s", dtype="float32") as writer:
        writer.add("1", regions)
        regions.features[:] = 0
        writer.seal()
    stored = FeatureStore(tmp_path / "s")["1"]
    np.testing.assert_array_equal(stored.features, expected.features)
