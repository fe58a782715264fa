from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2cap.data.batches.sampling import caption_choice, epoch_order, is_mirrored, part_order

seeds = st.integers(0, 2**63)
epochs = st.integers(0, 1000)


@given(count=st.integers(0, 500), seed=seeds, epoch=epochs)
def test_an_epoch_sees_every_image_once(count, seed, epoch):
    order = epoch_order(count, seed=seed, epoch=epoch)
    assert order.dtype == np.int64
    assert sorted(order) == list(range(count))


@pytest.mark.slow
def test_every_image_is_equally_often_at_every_position():
    orders = np.array([epoch_order(5, seed=0, epoch=epoch) for epoch in range(5000)])
    counts = np.array([np.bincount(column, minlength=5) for column in orders.T])
    # 1000 expected, standard deviation 28
    assert np.abs(counts - 1000).max() < 120


@given(
    available=st.integers(1, 9),
    wanted=st.integers(1, 12),
    seed=seeds,
    epoch=epochs,
    index=st.integers(0, 10**6),
)
def test_captions_are_repeated_only_if_there_are_too_few(available, wanted, seed, epoch, index):
    chosen = caption_choice(available, wanted, seed=seed, epoch=epoch, index=index)
    assert len(chosen) == wanted
    assert len(set(chosen)) == min(available, wanted)
    assert sorted(chosen[:available])[-1] < available
    if wanted >= available:
        assert sorted(chosen[:available]) == list(range(available))
    assert set(chosen) <= set(range(available))


@pytest.mark.slow
def test_every_caption_is_chosen_equally_often():
    chosen = Counter(caption_choice(7, 1, seed=0, epoch=epoch, index=3)[0] for epoch in range(7000))
    assert max(abs(count - 1000) for count in chosen.values()) < 120


def test_the_order_of_an_epoch_is_independent_of_the_choice_of_captions():
    orders = [epoch_order(8, seed=0, epoch=epoch).tolist() for epoch in range(20)]
    choices = [caption_choice(8, 8, seed=0, epoch=epoch, index=0) for epoch in range(20)]
    assert sum(left == right for left, right in zip(orders, choices, strict=True)) == 0


def test_the_order_is_the_same_in_every_release():
    # from Philox's raw stream, which NEP 19 fixes; seen with numpy 1.26.4 and 2.4.6
    assert epoch_order(10, seed=2022, epoch=3).tolist() == [3, 2, 7, 4, 8, 5, 6, 0, 9, 1]
    assert caption_choice(5, 7, seed=2022, epoch=3, index=11) == [2, 3, 0, 1, 4, 3, 2]


def mirrored(*, seed=0, epoch=0, count=1000):
    return np.array([is_mirrored(seed=seed, epoch=epoch, index=i) for i in range(count)])


def test_half_of_the_images_are_mirrored_and_others_in_another_epoch():
    first = mirrored()
    # 500 expected, standard deviation 16
    assert abs(first.sum() - 500) < 65
    for other in (mirrored(epoch=1), mirrored(seed=1)):
        assert abs(other.sum() - 500) < 65
        assert abs((first == other).sum() - 500) < 65


def test_parts_are_read_one_after_the_other_shuffled_within_a_window():
    parts = np.repeat(np.arange(20), 50)
    order = part_order(parts, window=10, seed=1, epoch=2)
    assert sorted(order) == list(range(1000))
    by_part = part_order(parts, window=0, seed=1, epoch=2)
    assert len(set(parts[by_part].reshape(20, 50)[:, 0])) == 20  # each part is whole
    assert (np.diff(parts[by_part]) != 0).sum() == 19
    moved = np.argsort(order) - np.argsort(by_part)
    assert 5 < np.abs(moved).max() < 10
    assert (part_order(parts, window=10, seed=1, epoch=2) == order).all()
    assert (part_order(parts, window=10, seed=1, epoch=3) != order).any()
    assert (part_order(parts, window=10, seed=2, epoch=2) != order).any()
