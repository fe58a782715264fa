"""torch.compile for training, with a fallback to the uncompiled captioner.

Layer by layer, or each pass as one graph, which becomes a CUDA graph on a GPU.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from a2cap.model.captioner import DecoderState, Memory, ScoredCaptions, StepOutput
from a2cap.model.captioners.encoder_decoder import EncoderDecoder
from a2cap.model.captioners.model_config import CompileMode

FEW_SHAPES = (8, 20)
"""Multiples of the tokens and of the regions of a batch, since each shape is a CUDA graph. The 100
regions of most stores, and slots of a linear mask network, are one of the second."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Warn = Callable[[str], None]


def compile_captioner(
    captioner: EncoderDecoder, mode: CompileMode, *, warn: _Warn, backend: str = "inductor"
) -> None:
    """Compile in place, each part at its first call; names of parameters stay as they are.

    warn: called once with one line if compiling fails; all then runs uncompiled.
    backend: of torch.compile; "aot_eager" traces and generates no code.
    """
    if mode == "reduce-overhead":
        _compile_passes(captioner, warn, backend)
    elif mode:
        _compile_layers(captioner, warn, backend)


def _compile_layers(captioner: EncoderDecoder, warn: _Warn, backend: str) -> None:
    # layers of one kind share their compiled code, so that six take no longer than one
    compiled = _compiler(warn, backend=backend)
    for layer, method in captioner.compiled_methods:
        setattr(layer, method, compiled(getattr(layer, method)))
    if not captioner.compiled_methods:
        warn("train.compile has no effect: this kind of captioner has no layers to compile")


def _compile_passes(captioner: EncoderDecoder, warn: _Warn, backend: str) -> None:
    options: dict[str, Any] = {"backend": backend, "fullgraph": True}
    if next(captioner.parameters()).is_cuda:
        options["mode"] = "reduce-overhead"
    compiled = _compiler(warn, **options)
    one_step, fast_step = captioner.step, compiled(captioner.step, decodes=True)
    fast_score = compiled(captioner.score)

    def step(tokens: Tensor, state: DecoderState, *, attention: bool = False) -> StepOutput:
        if attention:
            return one_step(tokens, state, attention=True)
        found: StepOutput = fast_step(_copy(tokens), state)
        # the next run of a CUDA graph writes over what it returned
        tensors = tuple(map(_copy, found.state.tensors))
        return replace(found, state=replace(found.state, tensors=tensors))

    def score(memory: Memory, captions: Tensor, **named: Any) -> ScoredCaptions:
        found: ScoredCaptions = fast_score(memory, _copy(captions), **named)
        return found

    vars(captioner).update(encode=compiled(captioner.encode), score=score, step=step)


def _copy(values: Tensor) -> Tensor:
    """Return a copy that is no view: a graph is compiled for each order of memory and each base."""
    return values.clone(memory_format=torch.contiguous_format)


def _compiler(warn: _Warn, **options: Any) -> Callable[..., Any]:
    """Return a function that compiles a method; with the first failure all run uncompiled."""
    failed = False

    def compiled(method: Callable[_P, _T], *, decodes: bool = False) -> Callable[_P, _T]:
        fast = torch.compile(method, dynamic=True, **options)

        def call(*arguments: _P.args, **named: _P.kwargs) -> _T:
            nonlocal failed
            # Validation stays uncompiled but for `decodes`: its sizes change with every token.
            if failed or torch.is_grad_enabled() == decodes:
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

    return compiled
