"""Self-critical training: baselines, and the gradient of step-by-step back-propagation."""

import pytest
import torch

from a2cap.model.decoding.sampling import sample_captions
from a2cap.model.self_critical.rollouts import generate_rollouts, self_critical_loss
from tests.model.kinds import FUSIONS, refusal
from tests.model.searching import search

PAD, BOS, EOS = 0, 1, 2


def sum_of_remainders(captions):
    """Sum the remainders of the tokens by 3, a reward that differs between captions."""
    return (captions % 3).double().sum(dim=-1)


def rollouts(captioner, memory, reward=sum_of_remainders, **options):
    return generate_rollouts(
        captioner, memory, reward, generator=torch.Generator().manual_seed(3), **options
    )


def test_leave_one_out_baseline_is_the_mean_of_the_other_samples(tiny, images):
    captioner = tiny()
    drawn = rollouts(captioner, images.encoded(captioner), samples=4)
    assert drawn.captions.shape[:2] == drawn.rewards.shape == (3, 4)
    for rewards, baseline in zip(drawn.rewards.tolist(), drawn.baseline.tolist(), strict=True):
        for sample, value in enumerate(baseline):
            others = rewards[:sample] + rewards[sample + 1 :]
            assert value == pytest.approx(sum(others) / 3)
    assert drawn.advantages.sum(dim=1).tolist() == pytest.approx([0, 0, 0])


@pytest.mark.slow
def test_greedy_baseline_is_the_reward_of_the_greedy_caption(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    drawn = rollouts(captioner, memory, baseline="greedy", samples=1)
    greedy = sum_of_remainders(sample_captions(captioner, memory, temperature=0))
    assert torch.equal(drawn.baseline, greedy)
    assert torch.equal(drawn.advantages, drawn.rewards - greedy)


def test_beam_mean_baseline_is_the_mean_of_the_beams(tiny, images):
    captioner = tiny()
    memory = images.encoded(captioner)
    drawn = rollouts(captioner, memory, baseline="beam_mean", samples=3, max_length=5)
    for rows, beams in zip(
        drawn.captions.tolist(), search(captioner, memory, beam_size=3, max_length=5), strict=True
    ):
        assert [row[: len(b.tokens)] for row, b in zip(rows, beams, strict=True)] == [
            list(b.tokens) for b in beams
        ]
    assert torch.allclose(drawn.baseline, drawn.rewards.mean(dim=1, keepdim=True).expand(3, 3))


def test_empty_beams_do_not_change_the_baseline(tiny, images):
    captioner = tiny()
    # only 8 tokens are allowed as the single token: the beam of 12 is not filled
    drawn = rollouts(
        captioner, images.encoded(captioner), baseline="beam_mean", samples=12, max_length=1
    )
    exists = (drawn.captions != PAD).any(dim=-1)
    assert exists.sum(dim=1).tolist() == [8, 8, 8]
    expected = (drawn.rewards * exists).sum(dim=1) / 8
    assert torch.allclose(drawn.baseline[:, 0], expected)


def test_a_single_sample_is_rejected_for_leave_one_out(tiny, images):
    captioner = tiny()
    message = refusal(rollouts, captioner, images.encoded(captioner), samples=1)
    assert message == "too few samples to leave one out: 1; choose 2 or more"


def test_the_loss_counts_every_token_up_to_eos_once():
    log_probs = torch.tensor([[[-1.0, -2.0, -4.0], [-3.0, 0.0, 0.0]]], requires_grad=True)
    loss = self_critical_loss(log_probs, torch.tensor([[0.5, -2.0]]))
    assert loss.item() == pytest.approx(0.5 * 7 - 2.0 * 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fusion", "baseline"),
    [*((fusion, "leave_one_out") for fusion in FUSIONS), ("gate", "greedy"), ("gate", "beam_mean")],
)
def test_the_gradient_equals_back_propagation_through_every_step(tiny, images, fusion, baseline):
    captioner = tiny(fusion=fusion)
    captioner.schedule_step.fill_(70_000)
    memory = images.encoded(captioner)
    drawn = rollouts(captioner, memory, baseline=baseline)
    scored = captioner.score(memory, drawn.captions)
    parameters = dict(captioner.named_parameters())
    loss = self_critical_loss(scored.log_probs, drawn.advantages)
    once = torch.autograd.grad(loss, parameters.values(), allow_unused=True)

    state = captioner.start(images.encoded(captioner), drawn.captions.shape[1])
    tokens = drawn.captions.flatten(0, 1)
    last, total = torch.full((len(tokens),), BOS), 0
    for column in tokens.T:
        output = captioner.step(last, state)
        picked = output.log_probs.gather(1, column[:, None]).squeeze(1)
        total = total - (picked * (column != PAD) * drawn.advantages.flatten()).sum()
        last, state = column, output.state
    stepwise = torch.autograd.grad(total, parameters.values(), allow_unused=True)

    assert drawn.advantages.abs().max() > 0
    for name, a, b in zip(parameters, once, stepwise, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    moved = {name for name, gradient in zip(parameters, once, strict=True) if gradient is not None}
    assert not any("mask_network" in name for name in moved)
    assert {"decoder.output.weight", "encoder.embedding.weight"} & moved
