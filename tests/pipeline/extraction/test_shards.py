"""One digest for one set of images, whatever the processes, stripes, kills and sources."""

import os
import shutil
import signal
import tarfile
from functools import partial

import pytest

from a2cap.data.errors import InputError, LockedError, StoreError, TruncatedError
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.files.sealed_folder import problems, read_manifest, seal
from a2cap.pipeline.engine.lock import stage_lock
from a2cap.pipeline.extraction import shard_folder
from a2cap.pipeline.extraction.images import LISTING, Source
from a2cap.pipeline.extraction.shard_folder import fill_shard, is_on_network
from tests.data.messages import message_of
from tests.data.sources.samples import write_arrow
from tests.pipeline.extraction.conftest import IDS
from tests.pipeline.training.runs import events

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.fixture
def new(new):
    """Prepare an extraction of detected regions, of which a CPU extracts one image at a time."""
    return partial(new, given=False)


@pytest.fixture
def digest(new):
    """Return the digest of a single process that is not interrupted."""
    alone = new("alone")
    alone.extract()
    return alone.store.digest


def started(work, *arguments):
    """Run work in a forked process; return its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        finally:
            os._exit(code)
    return child


def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_after(images):
    """Make the process kill itself once it has added so many images."""
    add, seen = FeatureWriter.add, []

    def add_and_die(writer, image_id, regions):
        add(writer, image_id, regions)
        seen.append(image_id)
        if len(seen) == images:
            os.kill(os.getpid(), signal.SIGKILL)

    FeatureWriter.add = add_and_die


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stripes_of_any_number_of_processes_give_one_digest(new, digest, count):
    run = new()
    children = [started(run.fill, number, count) for number in range(count)]
    assert [exit_code(child) for child in children] == [0] * count
    assert sorted(path.name for path in run.path.iterdir()) == ["00000", "00001", "00002"]
    assert run.extract() == []  # nothing is left but the list of the shards
    assert run.store.digest == digest
    assert list(run.store) == IDS
    assert [run.store.shard_of(name) for name in IDS] == [n // 8 for n in range(20)]
    assert problems(run.path) == []
    assert not (run.directory / "unfinished").exists()


def test_bad_images_of_stripes_at_the_same_time_count_together(new, scenes, tmp_path):
    bad = [IDS[0], IDS[8]]  # one of each stripe: more than 5 % of 20
    for image_id in bad:
        scenes[0][image_id].write_bytes(b"no image")
    run = new()
    assert run.fill(0, 2) == 1
    first = {path: path.rename(tmp_path / path.name) for path in sorted(run.path.iterdir())}
    assert run.fill(1, 2) == 2  # without the shards of the other process
    for path, moved in first.items():
        moved.rename(path)
    message = message_of(run.extract, error=InputError)
    assert message.startswith("2 of 20 images cannot be used, at most 1 may be left out: ")


@pytest.mark.slow
@pytest.mark.parametrize("images", [1, 8, 13, 20])
def test_a_killed_process_loses_no_shard_and_is_continued(new, digest, images):
    run = new()

    def work():
        kill_after(images)
        run.extract()

    assert exit_code(started(work)) == -signal.SIGKILL
    done = (images - 1) // 8
    assert len(list(run.directory.glob("features.lmdb/0*"))) == done
    run.extract()
    assert run.store.digest == digest
    assert [event["shard"] for event in events(run.directory, "shard")] == [
        "00000",
        "00001",
        "00002",
    ]


@pytest.mark.slow
def test_committed_images_of_a_killed_process_are_not_extracted_again(new, digest, monkeypatch):
    run = new()
    monkeypatch.setattr(
        FeatureWriter.__init__,
        "__kwdefaults__",
        {**FeatureWriter.__init__.__kwdefaults__, "commit_every": 2},
    )

    def work():
        kill_after(5)
        run.extract()

    assert exit_code(started(work)) == -signal.SIGKILL
    added, add = [], FeatureWriter.add
    monkeypatch.setattr(FeatureWriter, "add", lambda *image: added.append(image[1]) or add(*image))
    run.extract()
    assert added == IDS[4:]
    assert run.store.digest == digest


@pytest.mark.slow
def test_a_shard_that_was_sealed_but_not_published_is_published(new, digest, monkeypatch):
    run = new()

    def work():
        monkeypatch.setattr(
            shard_folder, "publish", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        run.extract()

    assert exit_code(started(work)) == -signal.SIGKILL
    sealed = read_manifest(run.directory / "unfinished" / "00000")
    run.extract()
    assert read_manifest(run.path / "00000") == sealed
    assert run.store.digest == digest


def test_a_shard_that_another_process_fills_is_named(new):
    run = new()
    run.directory.mkdir()
    lock = run.directory / "unfinished" / "00000.lock"
    with stage_lock(lock, what="a test"):
        message = message_of(run.extract, error=LockedError)
    shard = f"shard 00000 of {str(run.path)!r} is already running: process {os.getpid()} on "
    assert message.startswith(shard)
    assert message.endswith("; wait for it, or stop it")


def write_folder(text, folder):
    folder.mkdir(parents=True)
    (folder / "data").write_text(text)
    seal(folder, ["data"])


def test_the_first_process_that_publishes_a_shard_wins(tmp_path):
    def fill(folder):
        write_folder("mine", folder)
        write_folder("first", tmp_path / "store" / "00000")

    fill_shard(tmp_path / "store", "00000", fill)
    assert (tmp_path / "store" / "00000" / "data").read_text() == "first"
    assert not list(tmp_path.glob("unfinished/00000*/"))


# --- network file systems ------------------------------------------------------------------------


@pytest.fixture
def network(monkeypatch, tmp_path):
    """Report every folder as one of a network; return that of unfinished shards."""
    monkeypatch.setattr(shard_folder, "is_on_network", lambda path: True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.mark.slow
def test_on_a_network_a_shard_is_filled_in_scratch_space_and_copied(new, digest, network):
    run = new()

    def work():
        kill_after(13)
        run.extract()

    assert exit_code(started(work)) == -signal.SIGKILL
    assert not list(run.directory.rglob("lock.mdb"))  # LMDB was not opened for writing there
    assert list(network.glob("a2-*/00001/data.mdb"))
    run.extract()
    assert run.store.digest == digest
    assert list(network.iterdir()) == []


def test_a_damaged_copy_of_a_shard_is_not_published(tmp_path, network, monkeypatch):
    copy = shutil.copytree

    def copy_half(source, target):
        copy(source, target)
        (target / "data").write_text("mi")

    monkeypatch.setattr(shutil, "copytree", copy_half)
    message = message_of(
        fill_shard, tmp_path / "store", "00000", partial(write_folder, "mine"), error=StoreError
    )
    assert message.startswith("copy of a shard failed: ")
    assert list((tmp_path / "store").iterdir()) == []


def test_the_file_system_of_a_path_is_that_of_its_innermost_mount(tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:9 / {tmp_path}/lab\\040disk rw shared:2 - nfs4 server:/x rw\n"
        f"3 2 8:2 / {tmp_path}/lab\\040disk/local rw - xfs /dev/sdb rw\n"
        f"4 1 0:8 / {tmp_path}/s3 rw - fuse.s3fs s3 rw\n"
    )
    monkeypatch.setattr(shard_folder, "_MOUNTS", mounts)
    remote = {
        name: is_on_network(tmp_path / name)
        for name in ("lab disk/a", "lab disk/local/a", "other", "s3/a")
    }
    assert remote == {"lab disk/a": True, "lab disk/local/a": False, "other": False, "s3/a": True}


# --- sources -------------------------------------------------------------------------------------


@pytest.fixture
def source(scenes, tmp_path):
    """Write the images as two tars, as Parquet and as a list; return the text that names them."""

    def make(kind):
        images, _ = scenes
        files = list(images.values())
        if kind == "tar":
            for number, some in enumerate((files[:9], files[9:])):
                with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
                    for file in some:
                        tar.add(file, file.name)
            return str(tmp_path / "{0..1}.tar")
        if kind == "parquet":
            arrow = pytest.importorskip("pyarrow")
            from pyarrow import parquet

            rows = [{"jpg": file.read_bytes(), "key": file.name} for file in reversed(files)]
            parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet")
            return str(tmp_path / "a.parquet")
        if kind == "arrow":  # the folder of a cached data set
            pytest.importorskip("pyarrow")
            (tmp_path / "cached").mkdir()
            for number, some in enumerate((files[:9], files[9:])):
                columns = {"jpg": [f.read_bytes() for f in some], "key": [f.name for f in some]}
                write_arrow(tmp_path / "cached" / f"x-train-0000{number}.arrow", **columns)
            return str(tmp_path / "cached")
        (tmp_path / "list.txt").write_text(
            "".join(f"{file.relative_to(tmp_path)}\n" for file in files)
        )
        return str(tmp_path / "list.txt")

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tar", "parquet", "arrow"])
def test_images_of_a_source_have_the_features_of_a_folder(new, digest, source, kind):
    run = new(images=Source(source(kind)), workers=2)
    assert run.fill(1, 2) == 2
    assert run.extract() == []
    assert run.store.digest == digest
    assert not (run.directory / LISTING).exists()


@pytest.mark.slow
def test_a_damaged_list_of_images_is_made_again(new, digest, source, caplog):
    run = new(images=Source(source("tar")))
    run.fill(0, 3)
    listing = run.directory / LISTING
    listing.write_bytes(listing.read_bytes().replace(IDS[9].encode(), IDS[10].encode(), 1))
    run.extract()
    assert f"list of images is damaged: {str(listing)!r}; making it again" in caplog.messages
    assert run.store.digest == digest


@pytest.mark.slow
def test_only_wanted_images_of_a_source_are_extracted_and_missing_ones_listed(new, source):
    text = source("tar")
    run = new(images=Source(text, {*IDS[:3], "nowhere"}))
    [skipped] = run.extract()
    assert (skipped.image_id, skipped.reason) == ("nowhere", f"image is not in {text!r}")
    assert list(run.store) == IDS[:3]


def test_a_tar_that_ends_early_stops_the_extraction_before_any_work(new, source, tmp_path):
    text = source("tar")
    whole = (tmp_path / "1.tar").read_bytes()
    (tmp_path / "1.tar").write_bytes(whole[: len(whole) // 2])
    run = new(images=Source(text))
    message = message_of(run.extract, error=TruncatedError)
    assert message.startswith(f"tar {str(tmp_path / '1.tar')!r} ends early or is damaged, after ")
    assert not run.path.exists()
