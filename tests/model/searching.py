"""Beam search with its settings as keywords, and single images of a batch."""

import torch

from a2cap.model.captioner import DecoderState, StepOutput
from a2cap.model.decoding.beam_search import beam_search
from a2cap.model.decoding.decoding_config import DecodingConfig


def search(captioner, memory, *, forbidden=None, **settings):
    return beam_search(captioner, memory, DecodingConfig(**settings), forbidden=forbidden)


def encode_alone(captioner, images, number):
    """Encode one image without padding regions."""
    exists = images.region_mask[number]
    return captioner.encode(
        images.features[number : number + 1, exists],
        images.boxes[number : number + 1, exists],
        exists[None, exists],
    )


class Uncached:
    """A captioner that runs teacher forcing over all tokens at every step."""

    def __init__(self, captioner):
        self.captioner, self.special = captioner, captioner.special
        self.vocabulary_size = captioner.vocabulary_size

    def start(self, memory, rows_per_image):
        return DecoderState(memory, rows_per_image)

    def step(self, tokens, state, *, attention=False):
        prefix = torch.cat((*state.tensors, tokens[:, None]), dim=1)
        by_image = prefix.reshape(len(state.memory), state.rows_per_image, -1)
        log_probs = self.captioner(state.memory, by_image)[:, :, -1].flatten(0, 1)
        return StepOutput(
            log_probs, None, DecoderState(state.memory, state.rows_per_image, (prefix,))
        )
