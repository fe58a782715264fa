"""torch.compile for training, layer by layer, with a fallback to the uncompiled layers.

Layers of one kind share their compiled code, so that six take no longer to compile than one.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from a2cap.model.captioners.encoder_decoder import EncoderDecoder

_P = ParamSpec("_P")
_T = TypeVar("_T")


def compile_layers(
    captioner: EncoderDecoder, *, warn: Callable[[str], None], backend: str = "inductor"
) -> None:
    """Compile the layers in place, each at its first call; names of parameters stay as they are.

    warn: called once with one line if compiling fails; all layers then run uncompiled.
    backend: of torch.compile; "aot_eager" traces the layers and generates no code.
    """
    failed = False

    def compiled(method: Callable[_P, _T]) -> Callable[_P, _T]:
        fast = torch.compile(method, dynamic=True, backend=backend)

        def call(*arguments: _P.args, **named: _P.kwargs) -> _T:
            nonlocal failed
            # Decoding stays uncompiled: its sizes change with every token.
            if failed or not torch.is_grad_enabled():
                return method(*arguments, **named)
            try:
                return fast(*arguments, **named)
            except Exception as error:
                # Wrong arguments fail uncompiled too, and raise their own error here.
                result = method(*arguments, **named)
                failed = True
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
                warn(f"torch.compile failed, the model runs uncompiled: {reason}")
                return result

        return call

    for layer, method in captioner.compiled_methods:
        setattr(layer, method, compiled(getattr(layer, method)))
    if not captioner.compiled_methods:
        warn("train.compile has no effect: this kind of captioner has no layers to compile")
