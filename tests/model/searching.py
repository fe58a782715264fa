"""Beam search with its settings as keywords, and single images of a batch."""

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
