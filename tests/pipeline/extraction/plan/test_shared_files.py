"""The file operations of the protocol on a real disk: each succeeds for one worker of all."""

import errno
import os
from pathlib import Path

import pytest

from a2cap.pipeline.extraction.plan import shared_files
from a2cap.pipeline.extraction.plan.shared_files import SharedFolder, json_bytes


@pytest.fixture
def two(tmp_path):
    """Two workers of one folder."""
    workers = SharedFolder(tmp_path), SharedFolder(tmp_path)
    yield workers
    for worker in workers:
        worker.close()


@pytest.fixture(params=["links", "no-links"])
def links(request, monkeypatch):
    def fail(*paths):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    if request.param == "no-links":
        monkeypatch.setattr(shared_files.os, "link", fail)


@pytest.mark.usefixtures("links")
def test_one_worker_creates_a_file_and_leaves_no_other(two, tmp_path):
    first, second = two
    assert first.create("leases/0.json", b"first")
    assert not second.create("leases/0.json", b"second")
    assert second.read("leases/0.json") == b"first"
    assert first.names("leases") == ["0.json"]


def test_a_creation_whose_reply_was_lost_is_known_to_have_succeeded(two, monkeypatch):
    link = os.link

    def link_twice(source, target):
        link(source, target)
        link(source, target)

    monkeypatch.setattr(shared_files.os, "link", link_twice)
    assert two[0].create("leases/0.json", b"first")
    assert not two[1].create("leases/0.json", b"second")


def test_one_worker_renames_a_folder(two, tmp_path):
    for number, worker in enumerate(two):
        folder = tmp_path / f"0.{number}.partial"
        folder.mkdir()
        (folder / "record").write_text(str(number))
        worker.sync(folder.name)
    assert two[1].rename("0.1.partial", "0")
    assert not two[0].rename("0.0.partial", "0")
    assert not two[0].rename("0.2.partial", "0")
    assert two[0].read("0/record") == b"1"
    two[0].discard("0.0.partial")
    assert "0.0.partial" not in two[0].names("")


def test_a_worker_of_this_machine_is_gone_once_its_lock_is_free(two):
    first, second = two
    for worker in two:
        worker.write(f"workers/{worker.worker}.json", json_bytes(worker.description()))
    assert not first.is_gone(second.worker)
    second.close()
    assert first.is_gone(second.worker)
    assert not first.is_gone("nobody")


def test_a_worker_of_another_machine_may_live(two, monkeypatch, tmp_path):
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    first, second = two
    with monkeypatch.context() as patch:
        patch.setattr(shared_files, "_BOOT", Path(boot))
        second.write(f"workers/{second.worker}.json", json_bytes(second.description()))
    second.close()
    assert not first.is_gone(second.worker)
