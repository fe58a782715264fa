"""Scheduled sampling (Bengio et al. 2015, arXiv:1506.03099), for a whole caption at once.

A captioner is trained on tokens that it would generate in place of some of the reference's. They
are sampled in one pass over the reference (Duckworth et al. 2019, arXiv:1906.04331, with one pass),
so that it works alike for Transformers and recurrent captioners; Bengio et al. sample each token
after those sampled before it.
"""

import math

import torch
from torch import Tensor

from a2cap.model.captioner import CaptionModel, Memory, decoder_input
from a2cap.model.decoding.sampling import sample_tokens


@torch.no_grad()
def scheduled_inputs(
    captioner: CaptionModel, memory: Memory, captions: Tensor, *, rate: float
) -> Tensor:
    """Replace each input after <bos> with probability `rate` by a token that the captioner samples.

    captions: (B, K, L) int64, as for the losses. Returns (B, K, L) int64 inputs. Random numbers are
    those of the global RNG.
    """
    special = captioner.special
    inputs = decoder_input(captions, bos=special.bos)
    log_probs = captioner.forward(memory, inputs)[..., :-1, :].flatten(0, -2)
    # a caption that has ended is never continued
    log_probs[:, [special.pad, special.bos, special.eos]] = -math.inf
    sampled = sample_tokens(log_probs).reshape(inputs[..., 1:].shape)
    is_replaced = torch.rand(sampled.shape, device=sampled.device) < rate
    is_replaced &= captions[..., 1:] != special.pad
    inputs[..., 1:] = torch.where(is_replaced, sampled, inputs[..., 1:])
    return inputs
