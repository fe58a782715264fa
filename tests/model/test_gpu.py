"""Kernels and waits of training and decoding on a GPU, counted without one.

The captioner is that of the paper, and each number a limit: one `.item()` in a step fails here.
"""

import pytest
import torch

from a2cap.model.captioner import Teaching
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.decoding.decoding_config import DecodingConfig
from a2cap.model.losses import two_losses
from a2cap.model.mixed_precision import mixed_precision
from a2cap.model.self_critical.rollouts import generate_rollouts, self_critical_loss
from tests.kernels import Casts, fake_gpu

pytestmark = pytest.mark.slow

STEPS, SAMPLED = 5, 20
FORWARD, BEAM_STEP, SAMPLING_STEP, SELF_CRITICAL = 600, 230, 220, 7_000
"""Most kernels of a forward pass with both losses, of a step of beam search, of a step of sampling
with the greedy baseline, and of 20 such steps with the scores of the samples."""


@pytest.fixture(scope="module")
def counted():
    """Return kernels and waits of each task."""
    counts = {}
    with fake_gpu() as kernels:
        with torch.device("cuda"):
            captioner = TransformerCaptioner(
                TransformerConfig(), feature_width=2048, vocabulary_size=10_000
            )
            regions = torch.zeros(10, 50, 2048), torch.zeros(10, 50, 5), torch.ones(10, 50).bool()
            captions = torch.ones(10, 5, 20, dtype=torch.int64)
            teaching = Teaching(positions=torch.zeros(800, dtype=torch.int64))
        kernels.take()
        two_losses(captioner, captioner.encode(*regions), captions, teaching=teaching).total()
        counts["forward"] = kernels.take()
        memory = captioner.eval().encode(*regions)
        kernels.take()
        beam_search(captioner, memory, DecodingConfig(max_length=STEPS))
        counts["beams"] = kernels.take()
        options = {"baseline": "greedy", "max_length": SAMPLED}
        drawn = generate_rollouts(captioner, memory, lambda rows: rows.sum(-1), **options)
        counts["greedy"] = kernels.take()
        log_probs = captioner.score(memory, drawn.captions, teaching=teaching).log_probs
        self_critical_loss(log_probs, drawn.advantages)
        counts["scoring"] = kernels.take()
    return counts


def test_a_forward_pass_of_training_never_waits(counted):
    kernels, waits = counted["forward"]
    assert waits == 0
    assert kernels <= FORWARD


def test_decoding_waits_once_in_four_steps(counted):
    kernels, waits = counted["beams"]
    assert kernels <= STEPS * BEAM_STEP
    assert waits == 1 + 4  # and the four columns of the hypotheses
    kernels, waits = counted["greedy"]
    assert kernels <= SAMPLED * SAMPLING_STEP
    assert waits == (SAMPLED - 1) // 4


def test_a_self_critical_step_scores_its_captions_without_waiting(counted):
    kernels, waits = counted["scoring"]
    assert waits == 0
    assert counted["greedy"][0] + kernels <= SELF_CRITICAL


def test_bfloat16_casts_each_weight_once(tiny, images):
    captioner = tiny().float()
    weights = [m.weight for m in captioner.modules() if isinstance(m, torch.nn.Linear)]
    images.features, images.boxes = images.features.float(), images.boxes.float()
    with Casts() as casts, mixed_precision("bfloat16", torch.device("cpu"), captioner):
        two_losses(captioner, images.encoded(captioner), images.captions)
    assert captioner.decoder.output.weight.dtype == torch.float32
    assert {casts.counts[weight.data_ptr()] for weight in weights} == {1}
