"""A worker that fills shards: on a GPU one batch computes while the last one is written."""

import torch

from a2cap.pipeline.extraction import shard_worker


class OnGpu:
    """An extractor that claims to be on a GPU; it records what is started and waited for."""

    device = torch.device("cuda")

    def __init__(self, extractor):
        self.extractor, self.order, self.started = extractor, [], 0

    def __getattr__(self, name):
        return getattr(self.extractor, name)

    def start(self, images, boxes):
        self.started += 1
        number = self.started
        self.order.append(f"start {number}")

        def finish():
            self.order.append(f"finish {number}")
            return self.extractor.start(images, boxes)()

        return finish


def test_a_gpu_starts_the_next_batch_before_the_last_one_is_added(new, monkeypatch):
    load, loaded = shard_worker.load_extractor, []

    def load_on_gpu(*arguments, **options):
        loaded.append(OnGpu(load(*arguments, **options)))
        return loaded[-1]

    monkeypatch.setattr(shard_worker, "_BATCH_SIZE", 8)  # three of the twenty images
    expected, run = new("cpu"), new("gpu")
    expected.extract()
    monkeypatch.setattr(shard_worker, "load_extractor", load_on_gpu)
    run.extract()
    assert [extractor.order for extractor in loaded] == [
        ["start 1", "start 2", "finish 1", "start 3", "finish 2", "finish 3"]
    ]
    assert run.store.digest == expected.store.digest
