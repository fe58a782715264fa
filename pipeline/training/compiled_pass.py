"""Forward passes of updates, compiled by torch.compile to one graph for each of few shapes.

The backward pass is compiled with it. A GPU replays both as CUDA graphs, where it would otherwise
wait for the processor that launches its kernels.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Generic, ParamSpec, TypeVar
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor

from a2cap.data.errors import A2Error
from a2cap.model.captioner import Memory
from a2cap.pipeline.runtime.device_errors import device_failure
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.training.training_config import TrainingConfig

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Shape = tuple[tuple[int, ...], ...]

MOST_SHAPES = 6
"""Shapes that are compiled; torch itself gives up after eight."""


class CompiledPass(Generic[Arguments, Result]):
    """A pass that is compiled, and runs as it is for a shape too many or where that fails.

    forward: its first argument has the images of the batch on its first axis; all are tensors,
    memories or constants.
    """

    def __init__(
        self,
        forward: Callable[Arguments, Result],
        config: TrainingConfig,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        self._forward = forward
        self._parts = ranks.count * config.accumulate
        self._batch_size = config.batch_size
        self._is_first = False  # of its shape, whose backward pass is still to be compiled
        self._is_cuda = device.type == "cuda"
        self._compile(self._parts)

    def _compile(self, parts: int) -> None:
        # a smaller batch ends an epoch, and is not worth its compilation
        self._least_images = self._batch_size // parts
        # the next replay overwrites gradients that have not been used yet where there are parts
        self._replays = self._is_cuda and parts == 1
        self._shapes: set[Shape] = set()
        # a graph break would be an error: this is one graph, or none
        self._compiled: Callable[Arguments, Result] | None = torch.compile(
            self._forward,
            fullgraph=True,
            dynamic=False,
            mode="reduce-overhead" if self._replays else None,
        )

    def __call__(self, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        """Return the result of the pass."""
        shape = tuple(_shapes(arguments))
        is_known = shape in self._shapes
        is_refused = len(self._shapes) == MOST_SHAPES or shape[0][0] < self._least_images
        self._is_first = not (is_known or is_refused)
        if self._compiled is None or (is_refused and not is_known):
            return self._forward(*arguments, **keywords)
        if self._replays:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        try:
            with catch_warnings():  # the compiler asks intermediate tensors for their gradients
                filterwarnings("ignore", message="The .grad attribute", category=UserWarning)
                result = self._compiled(*arguments, **keywords)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # compilers raise types of their own
            if is_known:
                raise
            result = self._forward(*arguments, **keywords)  # raises the pass's own errors
            self._compiled = None
            _warn(error)
        self._shapes.add(shape)
        return result

    def divide(self, halvings: int) -> None:
        """Free the graphs and their memory; compile again for parts that are halved so often."""
        if self._compiled is not None:
            torch.compiler.reset()  # also of CUDA graphs
            self._compile(self._parts << halvings)

    def gives_up(self, error: Exception) -> bool:
        """Run uncompiled from now on if the error may be that of compiling a backward pass."""
        is_other = isinstance(error, A2Error) or device_failure(error) is not None
        if self._compiled is None or not self._is_first or is_other:
            return False
        self._compiled = None
        _warn(error)
        return True


def _warn(error: Exception) -> None:
    logger.warning(
        "updates run uncompiled: %s; set runtime.compile to off, or if no compiler works, "
        "install one of C++ (on a GPU Triton too)",
        next(iter(str(error).splitlines()), "") or type(error).__name__,
    )


def _shapes(arguments: tuple[object, ...]) -> Iterator[tuple[int, ...]]:
    for argument in arguments:
        tensor = argument.region_mask if isinstance(argument, Memory) else argument
        yield tuple(tensor.shape) if isinstance(tensor, Tensor) else ()
