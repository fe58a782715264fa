"""Captions per second of both phases of training, by precision, eager and compiled.

On the GPU where there is one, else on the CPU. An update is the product's own: the batch goes to
the device, for self-critical training captions are drawn and rewarded, then forward, backward,
clipping and Adam. Reading features from disk is not in it. For a GPU a profile of some updates says
which share of them it had nothing to compute.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import click
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from a2cap.data.batches.collate import Batch
from a2cap.model.captioners.transformer.compile import compile_layers
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.config import ModelConfig
from a2cap.pipeline.runtime.config import Precision
from a2cap.pipeline.runtime.precision import matrix_precision
from a2cap.pipeline.training.captioner.config import ScstConfig, TrainConfig
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyOptimizer
from a2cap.pipeline.training.captioner.rewards import ImageRewards
from a2cap.pipeline.training.captioner.self_critical import SelfCriticalOptimizer

if TYPE_CHECKING:  # run as a file, a script finds its neighbours without the folder's name
    from benchmarks.measure import Timing, interleaved, print_machine, print_table, ratio
    from benchmarks.self_critical import QUICK, SMALL, Corpus, Sizes, make_corpus
else:
    from measure import Timing, interleaved, print_machine, print_table, ratio
    from self_critical import QUICK, SMALL, Corpus, Sizes, make_corpus

PHASES = ("cross-entropy", "self-critical")
EOS = 2


@dataclass(frozen=True)
class Way:
    """How an update is computed."""

    precision: Precision
    compiled: bool

    @property
    def name(self) -> str:
        """As a row is called."""
        return f"{self.precision}, {'compiled' if self.compiled else 'eager'}"


BASE = Way("fp32", compiled=False)


class Optimisation(Protocol):
    """One update after the other, of either phase."""

    def step(self, parts: Sequence[Batch], number: int) -> Sequence[object]:
        """Update `number` on the parts of a batch."""


def ways(device: torch.device, *, compiled: bool) -> list[Way]:
    """The plainest first; TF32 is fp32 itself on a CPU."""
    precisions: list[Precision] = (
        ["fp32", "tf32", "bf16"] if device.type == "cuda" else ["fp32", "bf16"]
    )
    forms = (False, True) if compiled else (False,)
    return [Way(precision, form) for form in forms for precision in precisions]


def make_batch(sizes: Sizes, *, pinned: bool) -> Batch:
    """Random features, and captions of the greatest length."""
    places = (sizes.images, sizes.regions)
    tokens = torch.randint(4, sizes.vocabulary, (sizes.images, sizes.samples, sizes.tokens))
    tokens[..., -1] = EOS
    batch = Batch(
        image_ids=tuple(map(str, range(sizes.images))),
        features=torch.rand(*places, sizes.feature_width),
        boxes=torch.rand(*places, 5),
        region_mask=torch.ones(places, dtype=torch.bool),
        tokens=tokens,
    )
    return batch.pin_memory() if pinned else batch


def make_optimisation(
    phase: str,
    way: Way,
    sizes: Sizes,
    model: ModelConfig,
    corpus: Corpus,
    *,
    device: torch.device,
    say: Callable[[str], None],
) -> Optimisation:
    """A captioner of its own, and what trains it; say: told where compiling fails."""
    torch.manual_seed(0)
    captioner = TransformerCaptioner(
        model, feature_width=sizes.feature_width, vocabulary_size=sizes.vocabulary
    ).to(device)
    if way.compiled:
        compile_layers(captioner, warn=say)
    if phase == "cross-entropy":
        return CrossEntropyOptimizer(captioner, TrainConfig(precision=way.precision))
    rewards = ImageRewards(corpus.ours.to(device), list(map(str, range(sizes.corpus))))
    config = ScstConfig(precision=way.precision, samples=sizes.samples, max_length=sizes.tokens)
    return SelfCriticalOptimizer(captioner, config, rewards)


def updates(
    optimisation: Optimisation, way: Way, batch: Batch, *, count: int, device: torch.device
) -> Callable[[], None]:
    """Some updates in a row, until the device is done with them."""
    numbers = itertools.count(1)

    def run() -> None:
        with matrix_precision(way.precision):
            for number in itertools.islice(numbers, count):
                optimisation.step([batch], number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def idle_share(busy: Sequence[tuple[float, float]]) -> float:
    """The share of the time from the first start to the last end in which nothing was computed.

    busy: (start, end) of what was computed, in any unit; they may overlap. 0 for none.
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
    """That of the GPU while the form runs."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        form()
    events = found.events() or ()
    spans = [event.time_range for event in events if event.device_type == DeviceType.CUDA]
    return idle_share([(span.start, span.end) for span in spans])


def print_phase(
    phase: str,
    forms: dict[Way, Callable[[], None]],
    timings: dict[str, Timing],
    *,
    captions: int,
    title: str,
    on_gpu: bool,
) -> None:
    """captions: of one form."""
    base = timings[BASE.name].median
    rows = [
        [
            way.name,
            f"{captions / timings[way.name].median:,.1f}",
            timings[way.name].spread,
            ratio(base, timings[way.name].median),
            f"{idle_of(form):.0%}" if on_gpu else "",
        ]
        for way, form in forms.items()
    ]
    header = ["", "captions/s", "s in each round", f"of {BASE.name}", "GPU idle"]
    print_table(f"{phase}: {title}", header, rows)


@click.command()
@click.option("--quick", is_flag=True, help="Tiny sizes: shows that it runs, not how fast.")
@click.option("--compiled/--eager", default=torch.cuda.is_available(), help="torch.compile too.")
@click.option("--images", type=click.IntRange(min=1), default=None, help="In a batch.")
def main(quick: bool, compiled: bool, images: int | None) -> None:
    """Captions per second of both phases of training, by precision, eager and compiled."""
    print_machine()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    torch.backends.cudnn.allow_tf32 = False  # as the product has it
    given = QUICK if quick else Sizes()
    sizes = given if images is None else replace(given, images=images)
    model = SMALL if quick else ModelConfig()
    count, rounds = (1, 1) if quick else (20 if on_gpu else 1, 3)
    corpus = make_corpus(sizes)
    batch = make_batch(sizes, pinned=on_gpu)
    for phase in PHASES:
        forms = {}
        for way in ways(device, compiled=compiled):
            trained = make_optimisation(
                phase, way, sizes, model, corpus, device=device, say=click.echo
            )
            forms[way] = updates(trained, way, batch, count=count, device=device)
        timings = interleaved(
            {way.name: form for way, form in forms.items()}, rounds=rounds, warm_up=2
        )
        title = (
            f"{model.encoder_layers}+{model.decoder_layers} layers of {model.width}, "
            f"{sizes.images} x {sizes.samples} captions of {sizes.tokens} tokens, "
            f"{sizes.regions} regions, V {sizes.vocabulary:,}"
        )
        captions = count * sizes.images * sizes.samples
        print_phase(phase, forms, timings, captions=captions, title=title, on_gpu=on_gpu)


if __name__ == "__main__":
    main()
