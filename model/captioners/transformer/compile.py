"""torch.compile for training, layer by layer, with a fallback to the uncompiled layers.

Layers of one kind share their compiled code, so that six take no longer to compile than one.
"""

from collections.abc import Callable
from itertools import product

import torch

from a2cap.model.captioners.transformer.transformer import TransformerCaptioner


def compile_layers(
    captioner: TransformerCaptioner, *, warn: Callable[[str], None], backend: str = "inductor"
) -> None:
    """Compile the layers in place, each at its first call; names of parameters stay as they are.

    warn: called once with one line if compiling fails; all layers then run uncompiled.
    backend: of torch.compile; "aot_eager" traces the layers and generates no code.
    """
    failure = _Failure(warn)
    for layers, methods in (
        (captioner.encoder.layers, ("forward",)),
        (captioner.decoder.layers, ("self_attend", "cross_attend")),
    ):
        for layer, method in product(layers, methods):
            setattr(layer, method, _Compiled(getattr(layer, method), failure, backend))


class _Failure:
    """Record of a failed compilation of any layer, reported once."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self.happened = False

    def report(self, error: Exception) -> None:
        self.happened = True
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        self._warn(f"torch.compile failed, the model runs uncompiled: {reason}")


class _Compiled:
    """A layer's method, compiled when gradients are enabled and compiling works."""

    def __init__(self, method: Callable[..., object], failure: _Failure, backend: str) -> None:
        self._eager = method
        self._compiled = torch.compile(method, dynamic=True, backend=backend)
        self._failure = failure

    def __call__(self, *arguments: object, **named: object) -> object:
        # Decoding stays uncompiled: its sizes change with every token.
        if self._failure.happened or not torch.is_grad_enabled():
            return self._eager(*arguments, **named)
        try:
            return self._compiled(*arguments, **named)
        except Exception as error:
            # Wrong arguments fail uncompiled too, and raise their own error here.
            result = self._eager(*arguments, **named)
            self._failure.report(error)
            return result
