import pickle
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from a2cap.data.batches.loader import Batches, Share, image_batches
from a2cap.data.errors import InputError, StoreError
from tests.data.batches.items import (
    IDS,
    assert_all_equal,
    epoch_parts,
    make_batches,
    make_dataset,
    whole_batches,
)
from tests.data.messages import message_of


def items(batch):
    """Each image of a batch with its captions, without padding."""
    rows = zip(batch.image_ids, batch.tokens.tolist(), strict=True)
    return [(name, [[token for token in row if token] for row in tokens]) for name, tokens in rows]


@pytest.mark.parametrize("start", range(5))
def test_an_epoch_contains_every_image_once_and_resumes_from_any_batch(store, start):
    dataset = make_dataset(store)
    whole = list(whole_batches(dataset, batch_size=4, epoch=2))
    assert [len(batch.image_ids) for batch in whole] == [4, 4, 3]
    assert len(make_batches(dataset, batch_size=4)) == 3
    assert sorted(name for batch in whole for name in batch.image_ids) == IDS
    assert_all_equal(whole_batches(dataset, batch_size=4, epoch=2, start=start), whole[start:])


@pytest.mark.parametrize("grouping", ["image", "caption"])
def test_two_workers_give_the_same_batches_as_none(store, grouping):
    dataset = make_dataset(store, grouping=grouping)
    alone = list(whole_batches(dataset, batch_size=4, epoch=1, start=1))
    loaded = whole_batches(dataset, batch_size=4, epoch=1, start=1, workers=2)
    assert_all_equal(loaded, alone)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_are_batched_in_the_given_order(store, workers):
    asked = [IDS[5], IDS[0], IDS[9], IDS[0], IDS[3]]
    batches = list(image_batches(store, asked, batch_size=2, workers=workers))
    names = [batch.image_ids for batch in batches]
    assert names == [(IDS[5], IDS[0]), (IDS[9], IDS[0]), (IDS[3],)]
    assert all(batch.tokens is None for batch in batches)


def global_rng_state():
    return torch.get_rng_state().tolist(), random.getstate(), pickle.dumps(np.random.get_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_does_not_change_the_global_rng_state_nor_depend_on_it(store, workers):
    dataset = make_dataset(store)
    first = list(whole_batches(dataset, batch_size=4, workers=workers))
    torch.manual_seed(2)
    before = global_rng_state()
    assert_all_equal(whole_batches(dataset, batch_size=4, workers=workers), first)
    list(image_batches(store, IDS, batch_size=4, workers=workers))
    assert global_rng_state() == before


@pytest.mark.slow
@pytest.mark.parametrize("grouping", ["image", "caption"])
@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 1), (2, 2), (3, 2), (7, 1)])
def test_the_shares_of_all_ranks_make_up_the_batch_of_one(store, grouping, ranks, micro_batches):
    dataset = make_dataset(store, grouping=grouping)
    options = {"batch_size": 4, "epoch": 1, "start": 1}
    whole = list(whole_batches(dataset, **options))
    shared = [
        list(epoch_parts(dataset, **options, share=Share(rank, ranks, micro_batches)))
        for rank in range(ranks)
    ]
    assert [len(batches) for batches in shared] == [len(whole)] * ranks
    for batch, *shares in zip(whole, *shared, strict=True):
        shared_items = sorted(item for share in shares for part in share for item in items(part))
        assert shared_items == sorted(items(batch))


def test_a_batch_is_dealt_out_round_robin(store):
    [whole] = whole_batches(make_dataset(store), batch_size=11)
    names = whole.image_ids
    for rank in range(2):
        share = Share(rank, ranks=2, micro_batches=2)
        [parts] = epoch_parts(make_dataset(store), batch_size=11, share=share)
        assert [part.image_ids for part in parts] == [names[rank::4], names[rank + 2 :: 4]]


@pytest.mark.parametrize(
    ("batch_size", "share", "sizes"),
    [
        (10, Share(1, ranks=2), [[5], []]),  # no item of the last batch for this rank
        (9, Share(micro_batches=4), [[3, 2, 2, 2], [1, 1]]),  # sizes differ by one, none is empty
    ],
)
def test_micro_batches_have_these_sizes(store, batch_size, share, sizes):
    batches = epoch_parts(make_dataset(store), batch_size=batch_size, share=share)
    assert [[len(part.image_ids) for part in parts] for parts in batches] == sizes


class Numbers:
    """The index of each key; one index cannot be read."""

    def __init__(self, unreadable):
        self._unreadable = unreadable

    def __len__(self):
        return 8

    def __getitem__(self, key):
        _, index = key
        if index == self._unreadable:
            raise InputError(f"number {index} is gone; write it again")
        return index


def reject_odd(numbers):
    if any(number % 2 for number in numbers):
        raise StoreError("odd; make it even")
    return numbers


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "collated", "error", "text"),
    [
        (Numbers(5), list, InputError, "number 5 is gone; write it again"),
        (Numbers(None), reject_odd, StoreError, "odd; make it even"),
    ],
)
def test_an_error_in_a_worker_keeps_its_type_and_text(dataset, collated, error, text, workers):
    batches = Batches(dataset, collated, batch_size=2, seed=0, workers=workers).epoch(0)
    assert message_of(list, batches, error=error) == text


def test_two_batches_are_loaded_ahead_by_each_thread_and_no_thread_is_left(store):
    made, threads = [], set(threading.enumerate())

    def collated(numbers):
        made.append(numbers)
        return numbers

    for workers in (1, 3):
        made.clear()
        epoch = Batches(Numbers(None), collated, batch_size=1, seed=0, workers=workers).epoch(0)
        assert made == []
        next(epoch)
        for _ in range(1000):
            if len(made) == 2 * workers:
                break
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(made) == 2 * workers
        epoch.close()
        assert set(threading.enumerate()) == threads


EXIT_WITH_RUNNING_WORKERS = """
import sys
from pathlib import Path
from a2cap.data.batches.loader import image_batches

store, *image_ids = sys.argv[1:]
held = iter(image_batches(Path(store), image_ids, batch_size=1, workers=2))
next(held)
held = [held, next(held)]
held.append(held)  # as an error holds the frames of its traceback, and they hold the error
"""


@pytest.mark.slow
def test_a_process_can_exit_while_its_threads_are_loading(store):
    ended = subprocess.run(
        [sys.executable, "-c", EXIT_WITH_RUNNING_WORKERS, str(store), *IDS],
        check=False,
        timeout=600,
        stderr=subprocess.PIPE,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
