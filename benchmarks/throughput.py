"""Captions per second of both training tasks, by precision, eager and compiled.

Runs on the GPU if there is one, else on the CPU. An update is that of `a2 train`: the batch is
moved to the device, self-critical training samples and rewards captions, then forward, backward,
clipping and Adam. Reading features from disk is excluded. On a GPU a profile of some updates gives
the share of idle time.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import click
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from a2cap.data.batches.collate import Batch
from a2cap.model.captioners.compile import compile_captioner
from a2cap.model.captioners.model_config import CompileMode
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.runtime.config import Precision
from a2cap.pipeline.runtime.precision import matrix_precision
from a2cap.pipeline.training.captioner.config import ScstConfig, TrainConfig
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyOptimizer
from a2cap.pipeline.training.captioner.rewards import ImageRewards
from a2cap.pipeline.training.captioner.self_critical import SelfCriticalOptimizer
from a2cap.pipeline.training.loop import Optimizer
from benchmarks.measure import Timing, interleaved, print_machine, print_table, ratio
from benchmarks.self_critical import QUICK, SMALL, Corpus, Sizes, make_corpus

TASKS = ("cross-entropy", "self-critical")
EOS = 2


@dataclass(frozen=True)
class Variant:
    """Precision and compilation of an update."""

    precision: Precision
    compiled: CompileMode

    @property
    def name(self) -> str:
        """Name of the row."""
        forms: dict[CompileMode, str] = {False: "eager", True: "compiled"}
        return f"{self.precision}, {forms.get(self.compiled, self.compiled)}"


BASE = Variant("fp32", compiled=False)


def variants(device: torch.device, *, compiled: bool) -> list[Variant]:
    """Return the variants, plain fp32 first; on a CPU TF32 equals fp32."""
    precisions: list[Precision] = (
        ["fp32", "tf32", "bf16"] if device.type == "cuda" else ["fp32", "bf16"]
    )
    forms: list[CompileMode] = [False, True, "reduce-overhead"] if compiled else [False]
    return [Variant(precision, form) for form in forms for precision in precisions]


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
    variant: Variant,
    sizes: Sizes,
    model: TransformerConfig,
    corpus: Corpus,
    *,
    device: torch.device,
    say: Callable[[str], None],
) -> Optimizer[Batch]:
    """Create a captioner and its updates; say: called if compiling fails."""
    torch.manual_seed(0)
    captioner = TransformerCaptioner(
        model, feature_width=sizes.feature_width, vocabulary_size=sizes.vocabulary
    ).to(device)
    compile_captioner(captioner, variant.compiled, warn=say)
    if task == "cross-entropy":
        return CrossEntropyOptimizer(captioner, TrainConfig(precision=variant.precision))
    rewards = ImageRewards(corpus.a2.to(device), list(map(str, range(sizes.corpus))))
    config = ScstConfig(precision=variant.precision, samples=sizes.samples, max_length=sizes.tokens)
    return SelfCriticalOptimizer(captioner, config, rewards)


def updates(
    optimisation: Optimizer[Batch],
    variant: Variant,
    batch: Batch,
    *,
    count: int,
    device: torch.device,
) -> Callable[[], None]:
    """Return a function that runs `count` updates and waits for the device."""
    numbers = itertools.count(1)

    def run() -> None:
        with matrix_precision(variant.precision):
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


def print_task(
    task: str,
    forms: dict[Variant, Callable[[], None]],
    timings: dict[str, Timing],
    *,
    captions: int,
    title: str,
    on_gpu: bool,
) -> None:
    """Print one row per variant; captions: number per call of a form."""
    base = timings[BASE.name].median
    rows = [
        [
            variant.name,
            f"{captions / timings[variant.name].median:,.1f}",
            timings[variant.name].spread,
            ratio(base, timings[variant.name].median),
            f"{idle_of(form):.0%}" if on_gpu else "",
        ]
        for variant, form in forms.items()
    ]
    header = ["", "captions/s", "s in each round", f"of {BASE.name}", "GPU idle"]
    print_table(f"{task}: {title}", header, rows)


@click.command()
@click.option("--quick", is_flag=True, help="Use tiny sizes, only to check that it runs.")
@click.option("--compiled/--eager", default=torch.cuda.is_available(), help="Use torch.compile.")
@click.option("--images", type=click.IntRange(min=1), default=None, help="Images per batch.")
def main(quick: bool, compiled: bool, images: int | None) -> None:
    """Measure captions per second of both training tasks, by precision, eager and compiled."""
    print_machine()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    torch.backends.cudnn.allow_tf32 = False  # as in a2 train
    given = QUICK if quick else Sizes()
    sizes = given if images is None else replace(given, images=images)
    model = SMALL if quick else TransformerConfig()
    count, rounds = (1, 1) if quick else (20 if on_gpu else 1, 3)
    corpus = make_corpus(sizes)
    batch = make_batch(sizes, pinned=on_gpu)
    for task in TASKS:
        forms = {}
        for variant in variants(device, compiled=compiled):
            trained = make_optimisation(
                task, variant, sizes, model, corpus, device=device, say=click.echo
            )
            forms[variant] = updates(trained, variant, batch, count=count, device=device)
        timings = interleaved(
            {variant.name: form for variant, form in forms.items()}, rounds=rounds, warm_up=2
        )
        title = (
            f"{model.encoder_layers}+{model.decoder_layers} layers of {model.width}, "
            f"{sizes.images} x {sizes.samples} captions of {sizes.tokens} tokens, "
            f"{sizes.regions} regions, V {sizes.vocabulary:,}"
        )
        captions = count * sizes.images * sizes.samples
        print_task(task, forms, timings, captions=captions, title=title, on_gpu=on_gpu)


if __name__ == "__main__":
    main()
