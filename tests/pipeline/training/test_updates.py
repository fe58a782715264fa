"""An update: the losses of its parts, divided and clipped side by side, then one step."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from a2cap.data.errors import A2Error
from a2cap.pipeline.runtime.distributed import SINGLE
from a2cap.pipeline.training.captioner.train_config import TrainConfig
from a2cap.pipeline.training.training_parts import Update
from a2cap.pipeline.training.updates import Updater
from tests.data.messages import message_of


@dataclass(frozen=True)
class Numbers:
    """A part of a batch: numbers whose mean, times a parameter, is the loss."""

    values: torch.Tensor

    @property
    def image_ids(self):
        return ("7",)


class Sides(Updater[Numbers]):
    """Two parameters that a loss multiplies by the mean of the numbers, and by its double."""

    names = ("loss",)

    def __init__(self, config, *, divided=()):
        self.parameters = [nn.Parameter(torch.ones(1)) for _ in range(2)]
        sides = [([p], torch.optim.SGD([p], lr=0.0)) for p in self.parameters]
        super().__init__(sides, config, SINGLE)
        self.divided = divided

    def count(self, part):
        return len(part.values)

    def losses(self, part, number, index):
        first, second = self.parameters
        loss = (part.values.mean() * (first + 2 * second)).sum()
        return loss, loss.detach().reshape(1)

    def lr(self, number):
        return number / 10

    def divisors(self, values):
        return [torch.tensor(divisor) for divisor in self.divided]


def test_parts_count_by_their_share_of_the_batch():
    parts = [Numbers(torch.tensor([1.0, 2.0, 3.0])), Numbers(torch.tensor([6.0]))]
    whole, parted = (Sides(TrainConfig(clip_norm=None)) for _ in range(2))
    [expected] = whole.step([Numbers(torch.cat([part.values for part in parts]))], 2)
    [divided] = parted.step(parts, 2)
    assert (divided.amount, divided.image_ids) == (4, ("7", "7"))
    assert divided.means == expected.means == {"loss": pytest.approx(9.0)}
    assert divided.scalars["lr"] == 0.2
    for parameter, theirs in zip(parted.parameters, whole.parameters, strict=True):
        torch.testing.assert_close(parameter, theirs)
    assert [parameter.item() for parameter in whole.parameters] == pytest.approx([1 - 0.6, 1 - 1.2])


@pytest.mark.parametrize(
    ("clip_norm", "clipped"), [(1.0, [1.0, 0.5]), (None, [3.0, 0.5]), (1e6, [3.0, 0.5])]
)
def test_each_side_is_divided_and_clipped_by_itself(clip_norm, clipped):
    updater = Sides(TrainConfig(clip_norm=clip_norm), divided=(2.0, 24.0))
    [reported] = updater.step([Numbers(torch.tensor([6.0]))], 1)
    assert reported.gradient_norm == pytest.approx(math.hypot(3.0, 0.5))
    gradients = [parameter.grad.item() for parameter in updater.parameters]
    assert gradients == pytest.approx(clipped, rel=1e-5)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize(
    ("value", "factor"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)]
)
def test_a_loss_or_gradient_that_is_not_finite_changes_neither_side(value, factor, clip_norm):
    updater = Sides(TrainConfig(clip_norm=clip_norm))
    updater.parameters[1].register_hook(lambda gradient: gradient * factor)
    [reported] = updater.step([Numbers(torch.tensor([value]))], 1)
    assert not reported.finite
    assert math.isfinite(reported.means["loss"]) == math.isfinite(value)
    assert [parameter.item() for parameter in updater.parameters] == [1.0, 1.0]


def test_measurements_are_read_in_intervals_and_before_a_checkpoint():
    at_once, updater = Sides(TrainConfig()), Sides(TrainConfig())
    updater.read_interval = 3
    parts = [Numbers(torch.tensor([1.0]))]
    expected = [update for number in range(1, 6) for update in at_once.step(parts, number)]
    reported = [updater.step(parts, number) for number in range(1, 6)]
    assert reported == [[], [], expected[:3], [], []]
    assert [update.number for update in expected] == [1, 2, 3, 4, 5]
    assert updater.flush() == expected[3:]
    assert updater.flush() == []


@pytest.mark.parametrize("waits_seldom", [True, False])
def test_only_a_gpu_is_seldom_waited_for_and_only_where_asked(monkeypatch, waits_seldom):
    monkeypatch.setattr(Sides, "waits_seldom", waits_seldom)
    assert Sides(TrainConfig()).read_interval == 1
    with torch.device("meta"):
        assert Sides(TrainConfig()).read_interval == (20 if waits_seldom else 1)


class SmallMemory(Sides):
    """Updates without memory for more than `most` numbers at once."""

    def __init__(self, config, *, most, ranks=SINGLE):
        super().__init__(config)
        self.most, self.ranks, self.sizes = most, ranks, []

    def losses(self, part, number, index):
        if len(part.values) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.sizes.append(len(part.values))
        return super().losses(part, number, index)

    def halves(self, part):
        values = part.values
        return [Numbers(half) for half in values.chunk(2)] if len(values) > 1 else [part]


def test_too_little_memory_halves_the_parts_of_this_and_later_updates(caplog):
    expected = Sides(TrainConfig(clip_norm=None))
    updater = SmallMemory(TrainConfig(clip_norm=None), most=2)
    parts = [Numbers(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]))]
    for number in (1, 2):
        [ours], [theirs] = updater.step(parts, number), expected.step(parts, number)
        assert ours.means == theirs.means
        for parameter, other in zip(updater.parameters, expected.parameters, strict=True):
            torch.testing.assert_close(parameter, other)
    assert updater.sizes == [2] * 8
    assert (
        caplog.messages
        == [
            "out of memory with 1 images at once; computing 1 at a time, with the gradient of the "
            "whole batch; set accumulate to 2 or more to begin so"
        ]
        * 2
    )


@pytest.mark.parametrize("ranks", [SINGLE, replace(SINGLE, count=2)])
def test_too_little_memory_is_an_error_if_parts_cannot_be_halved(ranks):
    updater = SmallMemory(TrainConfig(), most=0, ranks=ranks)
    part = Numbers(torch.ones(1 if ranks is SINGLE else 2))
    updater._gradients.overlapped = iter  # sends nothing
    assert message_of(updater._backward, [part], 1, 1, error=A2Error) == (
        "out of memory with 1 images at once on cpu; set accumulate to compute a batch in more "
        "parts, or use a larger GPU"
    )


@pytest.mark.parametrize(
    ("loss", "norm", "finite"), [(1.5, 2.0, True), (math.nan, 2.0, False), (1.5, math.inf, False)]
)
def test_an_update_is_finite_if_its_losses_and_its_gradient_are(loss, norm, finite):
    update = Update(3, ("7",), 1, {"loss": loss, "classes": 1.5}, {}, norm)
    assert update.finite == finite
    assert update.summary() == f"loss {loss}, classes 1.5, gradient norm {norm}"
