"""Updates of both training tasks, by precision, which gpu_check times.

An update is that of `a2 train`: the batch is moved to the device, self-critical training samples
and rewards captions, then forward, backward, clipping and Adam. Reading features is excluded.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from a2cap.data.batches.collate import Batch
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.runtime.config import Precision
from a2cap.pipeline.runtime.precision import matrix_precision
from a2cap.pipeline.training.captioner.config import ScstConfig, TrainConfig
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyOptimizer
from a2cap.pipeline.training.captioner.self_critical import ImageRewards, SelfCriticalOptimizer
from a2cap.pipeline.training.loop import Optimizer
from benchmarks.self_critical import Corpus, Sizes

TASKS = ("cross-entropy", "self-critical")
EOS = 2


def precisions(device: torch.device) -> list[Precision]:
    """Return the precisions that differ on a device, fp32 first; on a CPU TF32 equals fp32."""
    return ["fp32", "tf32", "bf16"] if device.type == "cuda" else ["fp32", "bf16"]


def make_batch(sizes: Sizes, *, pinned: bool) -> Batch:
    """Return random features and captions of maximum length."""
    shape = (sizes.images, sizes.regions)
    tokens = torch.randint(4, sizes.vocabulary, (sizes.images, sizes.samples, sizes.tokens))
    tokens[..., -1] = EOS
    batch = Batch(
        image_ids=tuple(map(str, range(sizes.images))),
        features=torch.rand(*shape, sizes.feature_width),
        boxes=torch.rand(*shape, 5),
        region_mask=torch.ones(shape, dtype=torch.bool),
        tokens=tokens,
    )
    return batch.pin_memory() if pinned else batch


def make_optimisation(
    task: str,
    precision: Precision,
    sizes: Sizes,
    model: TransformerConfig,
    corpus: Corpus,
    *,
    device: torch.device,
) -> Optimizer[Batch]:
    """Create a captioner and its updates."""
    torch.manual_seed(0)
    captioner = TransformerCaptioner(
        model, feature_width=sizes.feature_width, vocabulary_size=sizes.vocabulary
    ).to(device)
    if task == "cross-entropy":
        return CrossEntropyOptimizer(captioner, TrainConfig(precision=precision))
    rewards = ImageRewards(corpus.a2.to(device), list(map(str, range(sizes.corpus))))
    config = ScstConfig(precision=precision, samples=sizes.samples, max_length=sizes.tokens)
    return SelfCriticalOptimizer(captioner, config, rewards)


def updates(
    optimisation: Optimizer[Batch],
    precision: Precision,
    batch: Batch,
    *,
    count: int,
    device: torch.device,
) -> Callable[[], None]:
    """Return a function that runs `count` updates and waits for the device."""
    numbers = itertools.count(1)

    def run() -> None:
        with matrix_precision(precision):
            for number in itertools.islice(numbers, count):
                optimisation.step([batch], number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def idle_share(busy: Sequence[tuple[float, float]]) -> float:
    """Return the share of idle time between the first start and the last end; 0 without any.

    busy: (start, end) of each computation, in any unit; they may overlap.
    """
    if not busy:
        return 0.0
    ordered = sorted(busy)
    first, reached = ordered[0][0], ordered[0][0]
    idle = 0.0
    for start, end in ordered:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle / (reached - first)


def idle_of(form: Callable[[], None]) -> float:
    """Return the idle share of the GPU while the form runs."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        form()
    events = found.events() or ()
    spans = [event.time_range for event in events if event.device_type == DeviceType.CUDA]
    return idle_share([(span.start, span.end) for span in spans])
