"""Decoding steps with fewer launches: compiled by inductor, or captured in CUDA graphs.

Neither is part of a2, as no GPU has run them. Both replace `CaptionDecoder.advance`, which launches
nine tenths of a step's kernels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import torch
from torch import Tensor

from a2cap.model.alignment import DecoderPass
from a2cap.model.captioner import Memory
from a2cap.model.captioners.cached_decoder import CachedDecoder
from a2cap.model.captioners.encoder_decoder import DecoderOutput
from a2cap.model.kv_cache import KVCache

Advance = Callable[[Tensor, KVCache, Memory, DecoderPass], DecoderOutput]
Run = Callable[[], None]


@contextmanager
def compiled_steps(decoder: CachedDecoder) -> Iterator[None]:
    """Compile the layers of a step, one graph without breaks for each shape."""
    compiled = torch.compile(decoder.advance, fullgraph=True, dynamic=False)
    with patch.object(decoder, "advance", compiled):
        yield


@contextmanager
def captured_steps(decoder: CachedDecoder) -> Iterator[None]:
    """Capture the layers of a step, once for each search and shape, and replay them."""
    with patch.object(decoder, "advance", CapturedSteps(decoder.advance)):
        yield


def capture(run: Run, device: torch.device) -> Run:
    """Return the replay of what a function does on a GPU; on a CPU, the function."""
    if device.type != "cuda":
        return run
    graph = torch.cuda.CUDAGraph()
    # threads that load batches may use the GPU meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph.replay


@dataclass
class _Step:
    """A captured step of one search and shape; what its kernels read stays at its address.

    memory, decoder_pass, cache: of the search; only the cache's bias, slots and position change.
    """

    advance: Advance
    tokens: Tensor
    cache: KVCache
    memory: Memory
    decoder_pass: DecoderPass
    output: DecoderOutput | None = None
    replay: Run | None = None

    @property
    def changing(self) -> tuple[Tensor, ...]:
        """Inputs that change from step to step."""
        return self.tokens, self.cache.bias, self.cache.slots, self.cache.position

    def run(self) -> None:
        self.output = self.advance(self.tokens, self.cache, self.memory, self.decoder_pass)

    def __call__(self, tokens: Tensor, cache: KVCache) -> DecoderOutput:
        """Return the output, which the next call overwrites."""
        changed = tokens, cache.bias, cache.slots, cache.position
        for kept, current in zip(self.changing, changed, strict=True):
            kept.copy_(current)
        if self.replay is None:
            self.replay = capture(self.run, tokens.device)  # which computes nothing yet on a GPU
        self.replay()
        assert self.output is not None  # `run` set it
        return self.output


@dataclass
class CapturedSteps:
    """A step that runs as it is for a shape's first token in a search, and then is replayed."""

    advance: Advance
    _steps: dict[tuple[int, ...], _Step] = field(default_factory=dict)

    def __call__(
        self, tokens: Tensor, cache: KVCache, memory: Memory, decoder_pass: DecoderPass
    ) -> DecoderOutput:
        """Decode the next token of each row."""
        shape = tuple(cache.bias.shape)
        step = self._steps.get(shape)
        # pools are these very objects as long as their search goes on
        if step is not None and step.cache.pools is cache.pools:
            return step(tokens, cache)
        # the first call also makes what a capture must not: workspaces of matrix products
        bias, slots, position = (t.clone() for t in (cache.bias, cache.slots, cache.position))
        # a CPU would otherwise leave out slots that are filled later
        filled = len(cache.numbers)
        kept = replace(cache, bias=bias, slots=slots, position=position, filled=filled)
        self._steps[shape] = _Step(self.advance, tokens.clone(), kept, memory, decoder_pass)
        return self.advance(tokens, cache, memory, decoder_pass)
