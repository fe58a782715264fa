"""The writer of a feature store: durable at every commit, resumable until it is sealed."""

import errno
import hashlib
import os
import re
import subprocess
import sys
import textwrap
import time

import lmdb
import numpy as np
import pytest

from a2cap.data.errors import StoreError
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.files.sealed_folder import MANIFEST, read_manifest
from tests.data.features.stores import flip_byte, make_regions, refusal, write_store, zero_tree

IDS = [f"{number:012d}" for number in range(12)]


def test_the_seal_describes_the_data_file_with_features_as_float16_by_default(tmp_path):
    path = tmp_path / "s"
    regions = make_regions("1")
    with FeatureWriter(path) as writer:
        writer.add("1", regions)
        regions.features[:] = 0  # the writer has a copy
        seal = writer.seal()
    data = (path / "data.mdb").read_bytes()
    manifest = read_manifest(path)
    assert manifest.outputs["data.mdb"].sha256 == hashlib.sha256(data).hexdigest()
    assert manifest.outputs["data.mdb"].size == len(data)
    assert manifest.facts == seal.model_dump(mode="json")
    assert sorted(file.name for file in path.iterdir()) == ["data.mdb", "manifest.json"]
    stored = FeatureStore(path)["1"].features
    assert stored.dtype == np.float16
    np.testing.assert_array_equal(stored, make_regions("1").features.astype(np.float16))


def test_the_digest_does_not_depend_on_order_commits_or_resumes(tmp_path):
    digests = {write_store(tmp_path / "plain", IDS).digest}
    digests.add(write_store(tmp_path / "backwards", reversed(IDS), commit_every=1).digest)
    write_store(tmp_path / "resumed", IDS[7:], sealed=False, commit_every=2)
    digests.add(write_store(tmp_path / "resumed", IDS[:7], map_size=1 << 20).digest)
    assert len(digests) == 1
    assert write_store(tmp_path / "fewer", IDS[1:]).digest not in digests
    assert write_store(tmp_path / "exact", IDS, dtype="float32").digest not in digests
    for image_id in "12":  # equal regions of another image
        with FeatureWriter(tmp_path / image_id) as writer:
            writer.add(image_id, make_regions("1"))
            digests.add(writer.seal().digest)
    assert len(digests) == 3
    assert write_store(tmp_path / "empty", []).digest == 64 * "0"
    assert list(FeatureStore(tmp_path / "empty")) == []


def test_done_includes_earlier_runs_and_uncommitted_images(tmp_path):
    write_store(tmp_path / "s", IDS[:3], sealed=False)
    with FeatureWriter(tmp_path / "s") as writer:
        writer.add(IDS[3], make_regions(IDS[3]))
        assert writer.done() == set(IDS[:4])
        assert len(writer) == 4
        writer.done().add(IDS[4])  # a copy
        assert IDS[0] in writer and IDS[3] in writer and IDS[4] not in writer


def stored_now(path):
    """Return the number of images that another process sees now."""
    script = (
        "import lmdb, sys\n"
        "with lmdb.open(sys.argv[1], readonly=True).begin() as t:\n"
        "    print(t.stat()['entries'])"
    )
    return int(subprocess.check_output([sys.executable, "-c", script, str(path)]))


def test_images_are_committed_every_commit_every_images_and_each_commit_is_reported(tmp_path):
    counts = []
    with FeatureWriter(tmp_path / "s", commit_every=4, on_commit=counts.append) as writer:
        for image_id in IDS[:7]:
            writer.add(image_id, make_regions(image_id))
        assert stored_now(tmp_path / "s") == 4
        writer.flush()
        assert stored_now(tmp_path / "s") == 7
    assert counts == [4, 7]


def test_a_kill_costs_at_most_64_images_unless_configured_otherwise(tmp_path):
    counts, regions = [], make_regions("1")
    with FeatureWriter(tmp_path / "s", commit_seconds=3600, on_commit=counts.append) as writer:
        for number in range(129):
            writer.add(str(number), regions)
    assert counts == [64, 128, 129]


def test_images_are_committed_after_commit_seconds(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with FeatureWriter(tmp_path / "s", commit_seconds=30) as writer:
        writer.add("1", make_regions("1"))
        now[0] += 30
        writer.add("2", make_regions("2"))
        assert stored_now(tmp_path / "s") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commit_every", "commits"), [(1, {1, 2, 3, 4, 5, 6, 7, 8}), (5, {5, 8})], ids=["1", "5"]
)
def test_a_map_that_is_full_at_every_commit_grows_without_loss(
    tmp_path, monkeypatch, commit_every, commits
):
    grown = []
    double = FeatureWriter._double_map
    monkeypatch.setattr(
        FeatureWriter, "_double_map", lambda self: (grown.append(len(self)), double(self))
    )

    def write(path, **options):
        with FeatureWriter(path, **options) as writer:
            for number in range(8):
                # each image is as large as all before it, so that every commit outgrows the map
                regions = make_regions(str(number), count=1 << number, width=4096)
                writer.add(str(number), regions)
            return writer.seal()

    seal = write(tmp_path / "s", map_size=1 << 14, commit_every=commit_every)
    assert set(grown) == commits
    assert write(tmp_path / "reference").digest == seal.digest


def test_the_writer_remains_usable_after_a_refused_image(tmp_path):
    bad = make_regions("1")
    bad.features[0, 0] = np.nan
    with FeatureWriter(tmp_path / "s") as writer:
        message = refusal(writer.add, "1", bad)
        assert message.startswith("feature of image '1' is not finite: nan; check")
        assert "1" not in writer
        writer.add("1", make_regions("1"))
        assert writer.seal().count == 1


def test_a_duplicate_id_is_refused(tmp_path):
    path = tmp_path / "features.lmdb"
    write_store(path, ["1"], sealed=False)
    with FeatureWriter(path) as writer:
        assert refusal(writer.add, "1", make_regions("1")) == (
            f"image '1' is already in {str(path)!r}; give every image a different id"
        )


@pytest.mark.parametrize("resumed", [False, True])
def test_all_images_have_one_region_width(tmp_path, resumed):
    path = tmp_path / "s"
    write_store(path, ["1"] if resumed else [], sealed=False)
    with FeatureWriter(path) as writer:
        if not resumed:
            writer.add("1", make_regions("1"))
        message = refusal(writer.add, "2", make_regions("2", width=9))
    assert message == (
        f"region width of image '2' is 9, of {str(path)!r} 8; extract all images with one extractor"
    )


def test_a_store_is_resumed_with_its_dtype(tmp_path):
    path = tmp_path / "s"
    write_store(path, ["1"], sealed=False)
    for _ in range(2):  # a refusal does not leave the store open
        assert refusal(FeatureWriter, path, dtype="float32") == (
            f"features of {str(path)!r} are float16, not float32; "
            'continue with float16, or run "a2 extract --force"'
        )


def test_a_sealed_store_accepts_no_image(tmp_path):
    path = tmp_path / "s"
    with FeatureWriter(path) as writer:
        writer.seal()
        message = refusal(writer.add, "1", make_regions("1"))
    assert message == f"{str(path)!r} is closed; open it again to write"
    assert "1" not in writer
    assert refusal(FeatureWriter, path) == (
        f"{str(path)!r} is sealed and cannot be changed; "
        'read it, or run "a2 extract --force" to replace it'
    )


def test_a_path_that_is_not_a_folder_is_refused(tmp_path):
    path = tmp_path / "s"
    path.write_text("a file")
    message = refusal(FeatureWriter, path)
    assert message.startswith(f"cannot open {str(path)!r} for writing: ")
    assert message.endswith("; choose another path or fix this one")


def test_a_damaged_unsealed_store_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "s"
    write_store(path, IDS, sealed=False)
    size = (path / "data.mdb").stat().st_size
    for damage, reason in (
        (zero_tree, r"page \d+ of its tree is corrupt"),
        (lambda file: os.truncate(file, size - 4096), f"{size} bytes .* it has {size - 4096}"),
    ):
        damage(path / "data.mdb")
        assert re.fullmatch(
            rf"{re.escape(repr(str(path)))} is damaged: {reason}; "
            'run "a2 extract --force" to replace it',
            refusal(FeatureWriter, path),
        )


def test_a_record_damaged_on_the_disk_prevents_the_seal(tmp_path):
    path = tmp_path / "s"
    write_store(path, ["41", "42"], sealed=False, dtype="float32")
    flip_byte(path / "data.mdb", make_regions("42").features.tobytes())
    writer = FeatureWriter(path, dtype="float32")
    with writer, pytest.raises(StoreError, match="record of image '42' is damaged: checksum"):
        writer.seal()
    assert not (path / MANIFEST).exists()


DISK_FULL = """
    import resource, sys
    from pathlib import Path
    from a2cap.data.errors import StoreError
    from a2cap.data.features.writer import FeatureWriter
    from tests.data.features.stores import make_regions

    path = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        with FeatureWriter(path, commit_every=2) as writer:
            for number in range(100):
                writer.add(str(number), make_regions(str(number), count=10, width=1000))
    except StoreError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with FeatureWriter(path) as writer:
        print(len(writer))
        for number in range(100):
            if str(number) not in writer:
                writer.add(str(number), make_regions(str(number), count=10, width=1000))
        print(writer.seal().count)
"""


def run_script(script, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def write_error(path, reason, *, kept):
    return (
        f"cannot write {str(path)!r}: {reason}; {kept} images are kept, "
        "free disk space and run again to resume"
    )


@pytest.mark.slow
def test_a_full_disk_is_reported_with_the_kept_images_and_the_next_run_continues(tmp_path):
    message, kept, count = run_script(DISK_FULL, tmp_path / "s")
    assert message == write_error(tmp_path / "s", "the disk is full or fails", kept=kept)
    assert 2 <= int(kept) < 20
    assert int(count) == 100


class FailingEnvironment:
    """LMDB's environment with one method that fails, `begin` only for a write."""

    def __init__(self, environment, method, error):
        self._environment, self._method, self._error = environment, method, error

    def __getattr__(self, name):
        def call(*given, **options):
            if name == self._method and options.get("write", True):
                raise self._error
            return getattr(self._environment, name)(*given, **options)

        return call


def refuse_commits(writer, code):
    """Let the commits of a writer fail; return the real environment."""
    real, error = writer._environment, lmdb.Error("mdb_txn_commit: refused")
    error.code = code
    writer._environment = FailingEnvironment(real, "begin", error)
    return real


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
def test_the_reason_of_a_failed_commit_is_reported(tmp_path, code, reason):
    with pytest.raises(StoreError) as at_the_end, FeatureWriter(tmp_path / "s") as writer:
        writer.add("1", make_regions("1"))
        writer.flush()
        writer.add("2", make_regions("2"))
        real = refuse_commits(writer, code)
        message = refusal(writer.flush)
        writer._environment = real
        writer.flush()  # the refused image is still in memory
        writer.add("3", make_regions("3"))
        refuse_commits(writer, code)
    assert message == write_error(tmp_path / "s", reason, kept=1)
    assert str(at_the_end.value) == write_error(tmp_path / "s", reason, kept=2)


def test_an_exception_commits_the_added_images_and_remains_the_error(tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt), FeatureWriter(tmp_path / "s") as writer:
        writer.add("1", make_regions("1"))
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), FeatureWriter(tmp_path / "s") as writer:
        assert writer.done() == {"1"}
        writer.add("2", make_regions("2"))
        refuse_commits(writer, errno.ENOSPC)
        raise KeyboardInterrupt
    assert caplog.messages == [write_error(tmp_path / "s", "the disk is full", kept=1)]


def test_a_map_that_cannot_grow_is_reported(tmp_path):
    writer = FeatureWriter(tmp_path / "s", map_size=1 << 14)
    writer.add("1", make_regions("1", count=64, width=4096))
    reason = "mdb_env_set_mapsize: Cannot allocate memory"  # as under `ulimit -v`
    error = lmdb.Error(reason)
    writer._environment = FailingEnvironment(writer._environment, "set_mapsize", error)
    assert refusal(writer.flush) == write_error(tmp_path / "s", reason, kept=0)


def test_a_seal_that_cannot_be_written_leaves_the_store_unsealed(tmp_path):
    path = tmp_path / "s"
    (path / ".manifest.json.partial").mkdir(parents=True)
    message = refusal(write_store, path, ["1"])
    assert message.startswith(f"cannot write {str(path)!r}: ")
    assert message.endswith("; 1 images are kept, free disk space and run again to resume")
    (path / ".manifest.json.partial").rmdir()
    assert write_store(path, []).count == 1


def test_added_regions_are_copied(tmp_path):
    regions = make_regions("1")
    expected = regions.features.copy()
    with FeatureWriter(tmp_path / "s", dtype="float32") as writer:
        writer.add("1", regions)
        regions.features[:] = 0
        writer.seal()
    np.testing.assert_array_equal(FeatureStore(tmp_path / "s")["1"].features, expected)
