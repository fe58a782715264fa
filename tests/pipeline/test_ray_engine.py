"""Tests of extraction on a Ray cluster: killed workers and nodes lose nothing."""

import os
import signal
import sys
import threading
import time

import pytest

from a2cap.data.errors import A2Error, InputError
from a2cap.data.features.shard import Shard
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.pipeline import ray_engine
from a2cap.pipeline.ray_engine import extract_with_ray, run_tasks
from tests.data.messages import message_of

SHARDS = [Shard(number, 3) for number in range(3)]


def run(work, address=None):
    run_tasks(work, SHARDS, address=address, cpus=1, gpu=True)


def test_without_ray_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert message_of(run, print, error=InputError) == (
        'ray is not installed: --engine ray needs it; run pip install "a2cap[ray]"'
    )


@pytest.fixture(scope="module")
def cluster():
    """Start a head without CPUs and two nodes with one each."""
    pytest.importorskip("ray", reason='ray is not installed: pip install "a2cap[ray]"')
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        started.add_node(num_cpus=1)
    yield started
    started.shutdown()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_killed_worker_and_a_killed_node_lose_nothing(cluster, experiment, tmp_path, monkeypatch):
    """Both die with all features in the store, before it is sealed."""
    extract, seal = ray_engine._extract_shard, FeatureWriter.seal
    artifacts = tmp_path / "artifacts"

    def extract_and_die(*arguments):
        *_, shard = arguments

        def die(self):
            try:
                (tmp_path / f"died {shard.number}").mkdir()
            except FileExistsError:
                return seal(self)
            if shard.number == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            elif shard.number == 1:
                import ray

                (tmp_path / ray.get_runtime_context().get_node_id()).mkdir()
                time.sleep(3600)
            return seal(self)

        FeatureWriter.seal = die
        try:
            extract(*arguments)
        finally:
            FeatureWriter.seal = seal

    def kill_node():
        nodes = list(cluster.worker_nodes)
        while not (found := [one for one in nodes if (tmp_path / one.node_id).exists()]):
            time.sleep(0.05)
        cluster.remove_node(found[0], allow_graceful=False)

    monkeypatch.setattr(ray_engine, "_extract_shard", extract_and_die)
    killing = threading.Thread(target=kill_node)
    killing.start()
    with experiment.open(artifacts=artifacts) as opened:
        extract_with_ray(opened, SHARDS, address=cluster.address, output=None)
        killing.join()
        outcome = opened.run("extract")
    assert len(list(tmp_path.glob("died *"))) == len(SHARDS)
    assert not outcome.ran
    stores = [
        folder / "features.lmdb" for folder in (outcome.directory, experiment.directory("extract"))
    ]
    assert len({FeatureStore(store).digest for store in stores}) == 1


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_error_in_one_shard_lets_the_others_end(cluster, tmp_path):
    def work(shard):
        if shard.number == 1:
            raise InputError("3 images cannot be used")
        (tmp_path / str(shard.number)).touch()

    assert message_of(run, work, cluster.address, error=A2Error) == (
        "1 of 3 shards failed, first 1/3: 3 images cannot be used; "
        "fix it and run again, which keeps the other shards"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_address_without_a_cluster_is_an_error(cluster):
    message = message_of(run, print, "127.0.0.1:1", error=InputError)
    assert message.startswith("no Ray cluster at '127.0.0.1:1': ")
    assert message.endswith("; start one with ray start --head, or leave out --address")
