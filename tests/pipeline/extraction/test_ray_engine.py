"""Shards as tasks on a Ray cluster: killed workers and nodes lose nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from a2cap.data.errors import A2Error, InputError
from a2cap.data.features.writer import FeatureWriter
from a2cap.pipeline.engine.events import EventLog
from a2cap.pipeline.extraction import extract_images as engine
from a2cap.pipeline.extraction.extract_images import extract_images, fill_on_ray
from a2cap.pipeline.extraction.shard_worker import Extraction
from tests.data.messages import message_of
from tests.pipeline.extraction.conftest import IDS

# A hanging call into Ray cannot be interrupted; the method ends the process.
pytestmark = [pytest.mark.timeout(300, method="thread"), pytest.mark.usefixtures("small_shards")]


TRIAL = """
import ray
from ray.cluster_utils import Cluster

started = Cluster()
started.add_node(num_cpus=1, include_dashboard=False)
started.add_node(num_cpus=1)
ray.init(address=started.address, log_to_driver=False)
task = ray.remote(num_cpus=1)(lambda: ray.get_runtime_context().get_node_id())
while len(set(ray.get([task.remote() for _ in range(4)]))) < 2:
    pass
"""


@pytest.fixture(scope="module")
def cluster():
    """Start two nodes with one CPU each, where a trial shows that Ray starts and both work."""
    pytest.importorskip("ray", reason='ray is not installed: pip install "a2cap[ray]"')
    try:
        subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, check=True, timeout=120)
    except subprocess.SubprocessError as error:
        pytest.skip(f"Ray does not work here: {error}")
    from ray.cluster_utils import Cluster

    started = Cluster()
    try:
        started.add_node(num_cpus=1, include_dashboard=False)
        started.add_node(num_cpus=1)
        yield started
    finally:
        started.shutdown()


def started_extraction(run):
    """Return the extraction of a run, its shards and its events."""
    run.directory.mkdir()
    extraction = Extraction.begin(run.inputs, run.directory, run.promised)
    return extraction, extraction.shards, EventLog(run.directory)


@pytest.mark.parametrize(
    ("address", "environment", "expected"),
    [
        ("10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.1:6379"),
        ("auto", "10.0.0.2:6379", "10.0.0.2:6379"),
        # never None, with which Ray joins the cluster that was last started on this machine
        ("auto", "", "local"),
    ],
)
def test_an_address_without_a_cluster_is_an_error(new, monkeypatch, address, environment, expected):
    def init(**options):  # Ray's takes minutes to give up
        raise ConnectionError(f"could not connect to {options['address']}\nnor to anything")

    monkeypatch.setenv("RAY_ADDRESS", environment)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    assert message_of(fill_on_ray, *started_extraction(new(ray=address))) == (
        f"no Ray cluster at {expected!r}: could not connect to {expected}; start one with "
        "ray start --head, or leave out --address"
    )


def test_ray_that_is_not_installed_is_named(new, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert message_of(fill_on_ray, *started_extraction(new(ray="auto"))) == (
        'ray is not installed: --engine ray needs it; run pip install "a2cap[ray]"'
    )


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_and_a_killed_node_lose_nothing(cluster, new, tmp_path, monkeypatch):
    """Each comes once, after an image was added; the second worker is killed with SIGTERM."""
    fill, add = engine._fill_on_node, FeatureWriter.add
    [node] = cluster.worker_nodes
    node_id = node.node_id
    deaths = tmp_path / "deaths"
    deaths.mkdir()

    def die(self, image_id, regions):
        import ray

        add(self, image_id, regions)
        on_node = ray.get_runtime_context().get_node_id() == node_id
        patience = time.monotonic() + 60
        while not (on_node or (deaths / "node").exists() or time.monotonic() > patience):
            time.sleep(0.05)  # the other node has its share
        for death in ("node",) if on_node else ("SIGKILL", "SIGTERM"):
            with suppress(FileExistsError):
                (deaths / death).mkdir()
                if on_node:
                    time.sleep(3600)
                os.kill(os.getpid(), getattr(signal, death))
                return

    def fill_and_die(*arguments):
        FeatureWriter.add = die
        try:
            fill(*arguments)
        finally:
            FeatureWriter.add = add

    ended = threading.Event()

    def kill_node():
        while not ended.wait(0.05):
            if (deaths / "node").exists():
                cluster.remove_node(node, allow_graceful=False)
                return

    monkeypatch.setattr(engine, "_fill_on_node", fill_and_die)
    killing = threading.Thread(target=kill_node)
    run = new(given=False, ray=cluster.address)
    run.directory.mkdir()
    killing.start()
    try:
        events = EventLog(run.directory)
        extract_images(run.inputs, run.directory, run.promised, events)
    finally:
        ended.set()
        killing.join()
    assert {path.name for path in deaths.iterdir()} == {"node", "SIGKILL", "SIGTERM"}
    assert list(run.store) == IDS
    single = new("alone", given=False)
    single.extract()
    assert run.store.digest == single.store.digest


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_error_in_one_shard_lets_the_others_end(cluster, new, tmp_path, monkeypatch):
    def work(*arguments):
        *_, name = arguments
        if name == "00001":
            raise InputError("the disk is full")
        (tmp_path / name).touch()

    monkeypatch.setattr(engine, "_fill_on_node", work)
    started = started_extraction(new(ray=cluster.address))
    assert message_of(fill_on_ray, *started, error=A2Error) == (
        "1 of 3 shards failed, first 00001: the disk is full; "
        "fix it and run again, which keeps the other shards"
    )
    assert (tmp_path / "00000").exists()
    assert (tmp_path / "00002").exists()
