import pickle
import random
import signal
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torch.utils.data._utils import signal_handling

from a2cap.data.batches import loader as batches_module
from a2cap.data.batches.collate import Batch, Item, collate
from a2cap.data.batches.dataset import CaptionDataset
from a2cap.data.batches.loader import Share, batches_per_epoch, epoch_batches, image_batches
from a2cap.data.batches.sampling import caption_choice, epoch_order
from a2cap.data.errors import ConfigError, InputError, LoaderError, StoreError
from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.regions import Regions

WIDTH = 6
IDS = [f"{number:012d}" for number in range(11)]
END = 2


class Captions:
    """Captions of the images of IDS, the words of each told apart by image and number."""

    def __init__(self, counts=None):
        self.counts = counts or dict.fromkeys(IDS, 5)

    def image_ids(self, split):
        return list(self.counts) if split == "train" else []

    def captions(self, image_id):
        tokens = np.zeros((self.counts[image_id], 12), np.int32)
        for number in range(len(tokens)):
            length = 1 + (int(image_id) + number) % 9
            tokens[number, :length] = 100 + 10 * int(image_id) + number
            tokens[number, length] = END
        return tokens


def make_regions(image_id, count=None):
    draw = np.random.default_rng(int(image_id))
    count = count or int(draw.integers(1, 8))
    return Regions(
        boxes=np.sort(draw.uniform(0, 100, (count, 2, 2)), axis=1)
        .reshape(count, 4)
        .astype(np.float32),
        features=draw.normal(size=(count, WIDTH)).astype(np.float32),
        scores=draw.uniform(size=count).astype(np.float32),
        class_ids=draw.integers(0, 1600, count).astype(np.int32),
        attribute_ids=draw.integers(0, 400, count).astype(np.int32),
        width=200,
        height=100,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "features.lmdb"
    with FeatureWriter(path) as writer:
        for image_id in IDS:
            writer.add(image_id, make_regions(image_id))
        writer.seal()
    return path


def make_dataset(store, counts=None, **options):
    return CaptionDataset(store, Captions(counts), "train", **{"seed": 7, **options})


def assert_equal(left, right):
    assert left.image_ids == right.image_ids
    for field in fields(Batch)[1:]:
        found, expected = getattr(left, field.name), getattr(right, field.name)
        assert (found is None) == (expected is None)
        assert found is None or torch.equal(found, expected), field.name


def assert_all_equal(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right)
    for found, expected in zip(left, right, strict=True):
        assert_equal(found, expected)


def items(batch):
    """Each image of a batch with its captions, without padding."""
    rows = zip(batch.image_ids, batch.tokens.tolist(), strict=True)
    return [(name, [[word for word in row if word] for row in tokens]) for name, tokens in rows]


def whole_batches(dataset, **options):
    """The batches of an epoch as one process sees them that computes each at once."""
    return (batch for [batch] in epoch_batches(dataset, collate, **options))


def test_a_batch_has_the_documented_shapes_and_types(store):
    [batch] = whole_batches(make_dataset(store), batch_size=99, seed=7, epoch=0)
    most = max(len(make_regions(image_id)) for image_id in IDS)
    assert sorted(batch.image_ids) == IDS
    assert (batch.features.shape, batch.features.dtype) == ((11, most, WIDTH), torch.float32)
    assert (batch.boxes.shape, batch.boxes.dtype) == ((11, most, 5), torch.float32)
    assert (batch.region_mask.shape, batch.region_mask.dtype) == ((11, most), torch.bool)
    assert (batch.tokens.shape, batch.tokens.dtype) == ((11, 5, 10), torch.int64)


def test_a_batch_holds_the_regions_of_its_images_and_zeros(store):
    for batch in whole_batches(make_dataset(store), batch_size=4, seed=7, epoch=0):
        for row, image_id in enumerate(batch.image_ids):
            regions = FeatureStore(store)[image_id]
            there = batch.region_mask[row]
            assert there.tolist() == [place < len(regions) for place in range(len(there))]
            features = torch.from_numpy(regions.features).float()
            assert torch.equal(batch.features[row, there], features)
            assert batch.features[row, ~there].count_nonzero() == 0
            assert batch.boxes[row, ~there].count_nonzero() == 0


def test_boxes_are_shares_of_the_image_and_of_its_area():
    boxes = np.array([[0, 0, 200, 100], [50, 20, 150, 70]], np.float32)
    batch = collate([Item("1", replace(make_regions("1", count=2), boxes=boxes), None)])
    expected = [[0, 0, 1, 1, 1], [0.25, 0.2, 0.75, 0.7, 0.25]]
    torch.testing.assert_close(batch.boxes[0], torch.tensor(expected))


def test_tokens_are_the_chosen_captions(store):
    dataset = make_dataset(store, captions_per_image=3)
    order = epoch_order(11, seed=7, epoch=4)
    first = next(whole_batches(dataset, batch_size=4, seed=7, epoch=4))
    assert first.image_ids == tuple(IDS[index] for index in order[:4])
    for row, index in enumerate(order[:4]):
        chosen = caption_choice(5, 3, seed=7, epoch=4, index=index)
        words = [100 + 10 * int(IDS[index]) + number for number in chosen]
        assert first.tokens[row, :, 0].tolist() == words


@settings(deadline=None, max_examples=50)
@given(
    lengths=st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=1, max_size=5),
    spare=st.integers(0, 5),
)
def test_tokens_are_cut_to_the_longest_caption_and_lose_no_word(lengths, spare):
    items = []
    for row, pair in enumerate(lengths):
        tokens = np.zeros((2, max(pair) + spare), np.int64)
        for number, length in enumerate(pair):
            tokens[number, :length] = 5
        items.append(Item(str(row), make_regions("1"), tokens))
    tokens = collate(items).tokens
    assert tokens.shape == (len(lengths), 2, max(max(pair) for pair in lengths))
    assert (tokens != 0).sum(dim=2).tolist() == lengths


def test_the_batches_of_an_epoch_hold_every_image_once(store):
    dataset = make_dataset(store)
    batches = list(whole_batches(dataset, batch_size=4, seed=7, epoch=0))
    assert [len(batch.image_ids) for batch in batches] == [4, 4, 3]
    assert sorted(name for batch in batches for name in batch.image_ids) == IDS
    assert batches_per_epoch(dataset, batch_size=4) == 3


def test_another_epoch_has_another_order_and_other_captions(store):
    dataset = make_dataset(store, captions_per_image=1)
    [zero] = whole_batches(dataset, batch_size=11, seed=7, epoch=0)
    [one] = whole_batches(dataset, batch_size=11, seed=7, epoch=1)
    assert zero.image_ids != one.image_ids
    assert set(zero.tokens[:, 0, 0].tolist()) != set(one.tokens[:, 0, 0].tolist())


@pytest.mark.parametrize("start", range(5))
def test_an_epoch_goes_on_from_any_batch(store, start):
    dataset = make_dataset(store)
    whole = list(whole_batches(dataset, batch_size=4, seed=7, epoch=2))
    rest = whole_batches(dataset, batch_size=4, seed=7, epoch=2, start=start)
    assert_all_equal(rest, whole[start:])


@pytest.mark.parametrize("grouping", ["image", "caption"])
def test_two_workers_give_the_batches_of_none(store, grouping):
    dataset = make_dataset(store, grouping=grouping)
    alone = list(whole_batches(dataset, batch_size=4, seed=7, epoch=1, start=1))
    helped = whole_batches(dataset, batch_size=4, seed=7, epoch=1, start=1, workers=2)
    assert_all_equal(helped, alone)


class Numbers(Dataset[int]):
    """The index of each key, but for one that cannot be read."""

    def __init__(self, unreadable):
        self._unreadable = unreadable

    def __len__(self):
        return 8

    def __getitem__(self, key):
        _, index = key
        if index == self._unreadable:
            raise InputError(f"number {index} is gone; write it again")
        return index


def refuse_odd(numbers):
    if any(number % 2 for number in numbers):
        raise StoreError("odd; make it even")
    return numbers


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "collated", "error", "text"),
    [
        (Numbers(5), list, InputError, "number 5 is gone; write it again"),
        (Numbers(None), refuse_odd, StoreError, "odd; make it even"),
    ],
)
def test_an_error_in_a_loader_process_keeps_its_type_and_its_text(
    dataset, collated, error, text, workers
):
    batches = epoch_batches(
        dataset,
        collated,
        batch_size=2,
        seed=0,
        epoch=0,
        workers=workers,
    )
    with pytest.raises(error) as raised:
        list(batches)
    assert str(raised.value) == text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_loader_that_has_just_started_does_not_end_it(store, monkeypatch, number):
    """Torch gives loaders handlers of its own, by which they end, before ours can be set."""
    set_handlers = signal_handling._set_worker_signal_handlers

    def set_handlers_and_signal():
        set_handlers()
        signal.raise_signal(number)

    monkeypatch.setattr(signal_handling, "_set_worker_signal_handlers", set_handlers_and_signal)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    found = list(image_batches(store, IDS, batch_size=4, workers=1))
    assert_all_equal(found, list(image_batches(store, IDS, batch_size=4)))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


HELD_AT_ITS_END = """
import sys
from pathlib import Path
from a2cap.data.batches.loader import image_batches

store, *image_ids = sys.argv[1:]
held = iter(image_batches(Path(store), image_ids, batch_size=1, workers=2))
next(held)
{signal}
held = [held, next(held)]
held.append(held)  # as an error holds the frames of its traceback, and they hold the error
"""
FROM_ANOTHER_TO_THE_GROUP = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if (other := os.fork()) == 0:
    os.killpg(0, signal.SIGTERM)
    os._exit(0)
os.waitpid(other, 0)
"""


@pytest.mark.parametrize("signalled", [False, True])
def test_a_process_ends_though_its_loaders_are_not_at_their_end(store, signalled):
    code = HELD_AT_ITS_END.format(signal=FROM_ANOTHER_TO_THE_GROUP if signalled else "")
    words = [sys.executable, "-c", code, str(store), *IDS]
    # in a session of its own, so that the signal is for its group alone
    ended = subprocess.run(
        words, check=False, start_new_session=True, timeout=60, stderr=subprocess.PIPE
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), "[Errno 104] Connection reset by"),
        (EOFError(), "EOFError"),
    ],
)
def test_a_loader_that_dies_while_it_hands_over_a_batch_is_lost(monkeypatch, error, reason):
    class Dying:
        def __init__(self, *arguments, **options):
            pass

        def __iter__(self):
            yield [0, 1]
            raise error

    monkeypatch.setattr(batches_module, "DataLoader", Dying)
    found = epoch_batches(Numbers(None), list, batch_size=2, seed=0, epoch=0, workers=1)
    assert next(found) == [[0, 1]]
    with pytest.raises(LoaderError) as raised:
        next(found)
    assert str(raised.value).startswith(f"a data loader worker died: {reason}")
    assert str(raised.value).endswith(" if memory ran out, and run again")


@pytest.mark.parametrize("workers", [0, 2])
def test_no_random_state_is_changed(store, workers):
    before = (torch.get_rng_state(), random.getstate(), pickle.dumps(np.random.get_state()))
    list(whole_batches(make_dataset(store), batch_size=4, seed=7, epoch=0, workers=workers))
    list(image_batches(store, IDS, batch_size=4, workers=workers))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert pickle.dumps(np.random.get_state()) == before[2]


def test_no_random_state_is_read(store):
    dataset = make_dataset(store)
    torch.manual_seed(1)
    first = list(whole_batches(dataset, batch_size=4, seed=7, epoch=0))
    torch.manual_seed(2)
    assert_all_equal(whole_batches(dataset, batch_size=4, seed=7, epoch=0), first)


@pytest.mark.parametrize("grouping", ["image", "caption"])
@pytest.mark.parametrize(("processes", "parts"), [(1, 3), (2, 1), (2, 2), (3, 2), (7, 1)])
def test_the_shares_of_all_processes_are_the_batches_of_one(store, grouping, processes, parts):
    dataset = make_dataset(store, grouping=grouping)
    options = {"batch_size": 4, "seed": 7, "epoch": 1, "start": 1}
    whole = list(whole_batches(dataset, **options))
    shared = [
        list(epoch_batches(dataset, collate, **options, share=Share(rank, processes, parts)))
        for rank in range(processes)
    ]
    assert [len(batches) for batches in shared] == [len(whole)] * processes
    for batch, *shares in zip(whole, *shared, strict=True):
        found = sorted(item for share in shares for part in share for item in items(part))
        assert found == sorted(items(batch))


def test_a_batch_is_dealt_out_in_turn(store):
    dataset = make_dataset(store)
    [whole] = whole_batches(dataset, batch_size=11, seed=7, epoch=0)
    names = whole.image_ids
    for rank in range(2):
        [parts] = epoch_batches(
            dataset,
            collate,
            batch_size=11,
            seed=7,
            epoch=0,
            share=Share(rank, ranks=2, micro_batches=2),
        )
        assert [part.image_ids for part in parts] == [names[rank::4], names[rank + 2 :: 4]]


def test_a_process_without_an_item_of_the_last_batch_has_no_part_of_it(store):
    batches = epoch_batches(
        make_dataset(store), collate, batch_size=10, seed=7, epoch=0, share=Share(1, ranks=2)
    )
    assert [[len(part.image_ids) for part in parts] for parts in batches] == [[5], []]


def test_parts_differ_by_one_item_at_most_and_none_is_empty(store):
    batches = epoch_batches(
        make_dataset(store), collate, batch_size=9, seed=7, epoch=0, share=Share(micro_batches=4)
    )
    assert [[len(part.image_ids) for part in parts] for parts in batches] == [[3, 2, 2, 2], [1, 1]]


def test_grouped_by_caption_every_pair_comes_once(store):
    counts = {image_id: 1 + number % 3 for number, image_id in enumerate(IDS)}
    dataset = make_dataset(store, counts, grouping="caption")
    assert len(dataset) == sum(counts.values())
    batches = list(whole_batches(dataset, batch_size=4, seed=7, epoch=0))
    assert len(batches) == batches_per_epoch(dataset, batch_size=4) == 6
    assert {batch.tokens.shape[1] for batch in batches} == {1}
    pairs = [
        (image_id, word)
        for batch in batches
        for image_id, word in zip(batch.image_ids, batch.tokens[:, 0, 0].tolist(), strict=True)
    ]
    assert sorted(pairs) == [
        (image_id, 100 + 10 * int(image_id) + number)
        for image_id in IDS
        for number in range(counts[image_id])
    ]


def test_images_with_too_few_captions_repeat_some(store):
    dataset = make_dataset(store, {IDS[0]: 2, IDS[1]: 7})
    [batch] = whole_batches(dataset, batch_size=2, seed=7, epoch=0)
    assert batch.tokens.shape[:2] == (2, 5)
    distinct = [len(set(row)) for row in batch.tokens[:, :, 0].tolist()]
    assert dict(zip(batch.image_ids, distinct, strict=True)) == {IDS[0]: 2, IDS[1]: 5}


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 20), most=st.integers(1, 25), levels=st.integers(1, 20))
def test_the_strongest_regions_are_kept_in_their_order(tmp_path_factory, count, most, levels):
    path = tmp_path_factory.mktemp("s") / "s"
    regions = make_regions("3", count)
    # few levels of score, so that there are ties
    regions = replace(regions, scores=np.round(regions.scores * levels).astype(np.float32))
    regions.features[:, 0] = np.arange(count)
    with FeatureWriter(path) as writer:
        writer.add("3", regions)
        writer.seal()
    [batch] = image_batches(path, ["3"], batch_size=1, max_regions=most)
    kept = batch.features[0, :, 0].int().tolist()
    ranked = sorted(range(count), key=lambda place: (-regions.scores[place], place))
    assert kept == sorted(ranked[:most])
    assert batch.boxes.shape[1] == batch.region_mask.sum() == min(count, most)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_to_evaluate_come_in_the_order_asked_for(store, workers):
    asked = [IDS[5], IDS[0], IDS[9], IDS[0], IDS[3]]
    batches = image_batches(store, asked, batch_size=2, workers=workers)
    for _ in range(2):  # they can be read again
        names = [batch.image_ids for batch in batches]
        assert names == [(IDS[5], IDS[0]), (IDS[9], IDS[0]), (IDS[3],)]
    assert all(batch.tokens is None for batch in batches)


def test_max_regions_holds_in_training_too(store):
    dataset = make_dataset(store, max_regions=2)
    [batch] = whole_batches(dataset, batch_size=11, seed=7, epoch=0)
    assert batch.features.shape[1] == 2


def test_a_batch_in_other_company_is_the_same_but_for_padding(store):
    [alone] = image_batches(store, IDS[:1], batch_size=1)
    [together] = image_batches(store, IDS, batch_size=11)
    count = alone.features.shape[1]
    assert torch.equal(together.features[0, :count], alone.features[0])
    assert together.region_mask[0].sum() == count


def test_skipped_images_are_left_out(store):
    counts = dict.fromkeys([*IDS, "000000000099"], 5)
    dataset = make_dataset(store, counts, skipped=["000000000099", IDS[0]])
    assert dataset.image_ids == IDS[1:]
    assert len(dataset) == 10


def test_an_image_without_features_is_named_before_training(store):
    with pytest.raises(StoreError) as raised:
        make_dataset(store, {IDS[0]: 5, "000000000099": 5})
    message = (
        f"no features for 1 images in {str(store)!r}: '000000000099'; run \"a2 extract\" first"
    )
    assert str(raised.value) == message
    with pytest.raises(StoreError) as raised:
        image_batches(store, ["000000000099"], batch_size=1)
    assert str(raised.value) == message


def test_an_empty_split_is_refused(store):
    with pytest.raises(InputError) as raised:
        CaptionDataset(store, Captions(), "tarin", seed=7)
    assert str(raised.value) == "split 'tarin' has no images; check the annotations"


@pytest.mark.parametrize("grouping", ["image", "caption"])
def test_an_image_without_captions_is_named(store, grouping):
    with pytest.raises(InputError) as raised:
        make_dataset(store, {IDS[0]: 5, IDS[1]: 0}, grouping=grouping)
    assert str(raised.value) == (f"image {IDS[1]!r} has no captions; remove it from the split")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: make_dataset(s, captions_per_image=0), "captions per image: 0"),
        (lambda s: make_dataset(s, max_regions=-1), "max regions: -1"),
        (lambda s: make_dataset(s, max_regions=0), "max regions: 0"),
        (lambda s: image_batches(s, IDS, batch_size=1, max_regions=0), "max regions: 0"),
        (lambda s: image_batches(s, IDS, batch_size=0), "batch size: 0"),
        (
            lambda s: epoch_batches(make_dataset(s), collate, batch_size=0, seed=7, epoch=0),
            "batch size: 0",
        ),
        (lambda s: batches_per_epoch(make_dataset(s), batch_size=0), "batch size: 0"),
    ],
)
def test_numbers_below_one_are_refused(store, ask, message):
    with pytest.raises(ConfigError) as raised:
        ask(store)
    assert str(raised.value) == f"{message} is below 1; raise it"


def test_a_batch_goes_to_a_device_whole(store):
    for batch in (
        next(whole_batches(make_dataset(store), batch_size=2, seed=7, epoch=0)),
        next(iter(image_batches(store, IDS, batch_size=2))),
    ):
        moved = batch.to("meta")
        tensors = [getattr(moved, field.name) for field in fields(Batch)[1:]]
        assert {tensor.device.type for tensor in tensors if tensor is not None} == {"meta"}
        assert (moved.tokens is None) == (batch.tokens is None)
        assert moved.image_ids == batch.image_ids


def test_every_tensor_of_a_batch_is_pinned(store, monkeypatch):
    pinned = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: (pinned.append(tensor), tensor)[1]
    )
    batch = next(whole_batches(make_dataset(store), batch_size=2, seed=7, epoch=0))
    assert_equal(batch.pin_memory(), batch)
    assert len(pinned) == 4
