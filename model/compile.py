"""torch.compile for training: encoder and decoder layers one by one, with a way back.

Layers of one kind share their compiled code, so that six take no longer to compile than one. Only
what takes gradients is compiled: when decoding, sizes change with every word.
"""

from collections.abc import Callable
from itertools import product

import torch

from a2cap.model.captioners.transformer.transformer import TransformerCaptioner


def compile_layers(
    captioner: TransformerCaptioner, *, say: Callable[[str], None], backend: str = "inductor"
) -> None:
    """Compiles the layers in place, each when it first runs; names of tensors stay as they are.

    say: told once, in one line, where compiling fails; all layers then run as before.
    backend: of torch.compile; "aot_eager" traces the layers and generates no code.
    """
    failure = _Failure(say)
    for layers, methods in (
        (captioner.encoder.layers, ("forward",)),
        (captioner.decoder.layers, ("read", "look")),
    ):
        for layer, method in product(layers, methods):
            setattr(layer, method, _Compiled(getattr(layer, method), failure, backend))


class _Failure:
    """Whether compiling has failed, for any layer; says so once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.happened = False

    def report(self, error: Exception) -> None:
        self.happened = True
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        self._say(f"torch.compile failed, the model runs uncompiled: {reason}")


class _Compiled:
    """A layer's method, compiled where it takes gradients and compiling works."""

    def __init__(self, method: Callable[..., object], failure: _Failure, backend: str) -> None:
        self._eager = method
        self._compiled = torch.compile(method, dynamic=True, backend=backend)
        self._failure = failure

    def __call__(self, *arguments: object, **named: object) -> object:
        if self._failure.happened or not torch.is_grad_enabled():
            return self._eager(*arguments, **named)
        try:
            return self._compiled(*arguments, **named)
        except Exception as error:
            # What is wrong with the arguments is wrong uncompiled too, and raised from there.
            found = self._eager(*arguments, **named)
            self._failure.report(error)
            return found
