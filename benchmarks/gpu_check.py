"""Check of a2 on a GPU, written to one JSON file after each of its parts.

It kills and resumes trainings. It measures extraction of regions and of cells, updates of both
training tasks as they are and compiled, with the epoch of COCO's 113,287 training images that
follows from them, beam search, sampling and peak memory. It sums gradients in a process group of
one rank. An update is that of `a2 train` without reading features. Extraction of regions and
cross-entropy have been run on a GPU, in 96 s, before updates were compiled; `--device cpu --quick`
runs all on tiny sizes. `--pages` writes the table of the last results into docs/performance.md.
"""

import itertools
import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torchvision import models

from a2cap.data.batches.collate import FEW_SHAPES, Batch, token_positions
from a2cap.extract.detector.input import BATCH
from a2cap.extract.efficientnet_lite import EfficientNetLite
from a2cap.extract.extract_config import GridBackbone
from a2cap.extract.extractor import AnyExtractor, Extractor, load_extractor
from a2cap.extract.image import read_image
from a2cap.model.captioners.cached_decoder import CachedDecoder
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.decoding.sampling import sample_captions
from a2cap.pipeline.runtime.runtime_config import Precision
from a2cap.pipeline.runtime.training_precision import matrix_precision
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyUpdater
from a2cap.pipeline.training.captioner.self_critical import ImageRewards, SelfCriticalUpdater
from a2cap.pipeline.training.captioner.train_config import ScstConfig, TrainConfig
from a2cap.pipeline.training.updates import Updater
from benchmarks import extract, self_critical, train
from benchmarks.gpu_decoding import captured_steps, compiled_steps
from benchmarks.gpu_results import kernels_of, with_table
from benchmarks.gpu_resume import TASKS, kill_and_resume
from benchmarks.measure import machine, print_machine

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
COCO_TRAINING_IMAGES, COCO_TEST_IMAGES = 113_287, 5_000
BATCHES = (10, 50)
"""Images per update: the papers', and one that fills a GPU better."""

SECONDS_TO_COMPILE = 300
"""Seconds after the start until something is compiled, so that all parts end in eight minutes."""

Findings = dict[str, object]

EOS = 2
LITE2: GridBackbone = "efficientnet-lite2"
COMPILED = "compiled decoding"


@dataclass(frozen=True)
class Setting:
    """The device, and whether sizes are tiny."""

    device: torch.device
    quick: bool
    deadline: float = math.inf
    """Value of `time.monotonic` after which nothing more is compiled."""

    @property
    def sizes(self) -> self_critical.Sizes:
        """Sizes of a batch of training."""
        return self_critical.QUICK if self.quick else self_critical.Sizes()

    @property
    def model(self) -> TransformerConfig:
        """The captioner."""
        return self_critical.SMALL if self.quick else TransformerConfig()

    @cached_property
    def corpus(self) -> self_critical.Corpus:
        """References of the reward."""
        return self_critical.make_corpus(self.sizes)

    @property
    def may_compile(self) -> bool:
        """False on a CPU, where to compile takes minutes, and after the deadline."""
        return self.is_gpu and time.monotonic() < self.deadline

    @property
    def calls(self) -> int:
        """Calls of a form of which the mean is taken."""
        return 1 if self.quick else 2

    @property
    def is_gpu(self) -> bool:
        """False on a CPU, where only the code paths run."""
        return self.device.type == "cuda"

    def seconds(self, form: Callable[[], object], *, count: int) -> float:
        """Return the seconds of a call: the mean of `count` after two that do not count."""
        for _ in range(2):
            form()
        self.wait()
        started = time.perf_counter()
        for _ in range(count):
            form()
        self.wait()
        return (time.perf_counter() - started) / count

    def wait(self) -> None:
        """Wait for the device."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def peak_memory(self) -> float | None:
        """Return the peak of the GPU's memory in GiB since the last call."""
        if not self.is_gpu:
            return None
        peak = torch.cuda.max_memory_allocated(self.device) / 2**30
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak


def make_batch(sizes: self_critical.Sizes, *, pinned: bool) -> Batch:
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
        positions=token_positions(tokens, FEW_SHAPES),
    )
    return batch.pin_memory() if pinned else batch


def make_optimisation(
    task: str, precision: Precision, setting: Setting, *, images: int, compiles: bool = False
) -> Updater[Batch]:
    """Create a captioner and its updates of so many images."""
    torch.manual_seed(0)
    sizes = setting.sizes
    captioner = TransformerCaptioner(
        setting.model, feature_width=sizes.feature_width, vocabulary_size=sizes.vocabulary
    ).to(setting.device)
    if task == "cross-entropy":
        training = TrainConfig(precision=precision, batch_size=images)
        return CrossEntropyUpdater(captioner, training, compiles=compiles)
    image_ids = list(map(str, range(sizes.corpus)))
    rewards = ImageRewards(setting.corpus.a2.to(setting.device), image_ids)
    lengths = {"samples": sizes.samples, "max_length": sizes.tokens}
    config = ScstConfig(precision=precision, batch_size=images, **lengths)
    return SelfCriticalUpdater(captioner, config, rewards, compiles=compiles)


def updates(
    optimisation: Updater[Batch],
    precision: Precision,
    batch: Batch,
    *,
    count: int,
    setting: Setting,
) -> Callable[[], None]:
    """Return a function that runs `count` updates and waits for the device."""
    numbers = itertools.count(1)

    def run() -> None:
        with matrix_precision(precision):
            for number in itertools.islice(numbers, count):
                optimisation.step([batch], number)
        setting.wait()

    return run


def measure_extraction(setting: Setting) -> Findings:
    """Measure images per second by backend and precision, of images that are decoded already."""
    base, depth, width = (extract.QUICK, 18, 8) if setting.quick else (extract.FULL, 101, 64)
    forms = {"exact": {"precision": "exact"}, "mixed": {"precision": "mixed"}}
    if find_spec("detectron2") is not None and not setting.quick:
        forms["detectron2"] = {"precision": "exact", "backend": "detectron2"}
    findings: Findings = {}
    with TemporaryDirectory() as folder:
        path = extract.draw_image(Path(folder) / "image.jpg")
        detector = extract.make_detector(path, base, depth=depth, width=width)
        for name, fields in forms.items():
            config = base.model_copy(update=fields)
            extractor = Extractor(detector, config=config, device=str(setting.device))
            findings[name] = measure_batches(extractor, read_image(path), setting)
    return findings


def measure_grids(setting: Setting) -> Findings:
    """Measure the same of the cells of two networks, whose weights are random but read by a2."""
    resnet = "resnet18" if setting.quick else "resnet101"
    networks: dict[GridBackbone, nn.Module] = {
        LITE2: EfficientNetLite(LITE2),
        resnet: models.get_model(resnet, weights=None),
    }
    base = extract.QUICK if setting.quick else extract.FULL
    findings: Findings = {}
    with TemporaryDirectory() as folder:
        path = extract.draw_image(Path(folder) / "image.jpg")
        for (name, network), precision in itertools.product(networks.items(), ("exact", "mixed")):
            weights = Path(folder) / f"{name}.pth"
            torch.save(network.state_dict(), weights)
            fields = {"boxes": "grid", "grid_backbone": name, "precision": precision}
            config = base.model_copy(update=fields)
            extractor = load_extractor(weights, config=config, device=str(setting.device))
            findings[f"{name}, {precision}"] = measure_batches(extractor, read_image(path), setting)
    return findings


def measure_batches(
    extractor: AnyExtractor, image: NDArray[np.uint8], setting: Setting
) -> Findings:
    """Measure two batches as shards are: the second is started before the first is waited for."""
    images = [image] * (1 if setting.quick else 2 * BATCH)

    def run() -> None:
        started = [extractor.start(images, [None] * len(images)) for _ in range(2)]
        for wait in started:
            wait()

    return {
        "images_per_second": 2 * len(images) / setting.seconds(run, count=setting.calls),
        "peak_gib": setting.peak_memory(),
        **kernels_of(run, setting.device),
    }


def measure_epochs(task: str, setting: Setting) -> Findings:
    """Measure updates by precision and batch, and extrapolate an epoch over COCO."""
    count = 1 if setting.quick else 5
    # on a CPU TF32 equals fp32
    precisions: list[Precision] = ["fp32", "tf32", "bf16"] if setting.is_gpu else ["fp32", "bf16"]
    findings: Findings = {}
    for images in (setting.sizes.images,) if setting.quick else BATCHES:
        batch = make_batch(replace(setting.sizes, images=images), pinned=setting.is_gpu)
        choices = [
            (precision, compiles)
            for precision in precisions
            for compiles in (False, True)
            if setting.is_gpu or not compiles  # to compile takes minutes on a CPU
        ]
        for precision, compiles in choices:
            name = f"{images} images, {precision}{', compiled' if compiles else ''}"
            if compiles and time.monotonic() > setting.deadline:
                findings[name] = {"skipped": "no time left to compile"}
                continue
            optimisation = make_optimisation(
                task, precision, setting, images=images, compiles=compiles
            )
            form = updates(optimisation, precision, batch, count=count, setting=setting)
            started = time.perf_counter()
            form()
            compiling = time.perf_counter() - started
            seconds = setting.seconds(form, count=setting.calls) / count
            whole = math.ceil(COCO_TRAINING_IMAGES / images)
            findings[name] = {
                "seconds_per_update": seconds,
                "seconds_of_first": compiling,
                "measured_updates": setting.calls * count,
                "updates_per_epoch": whole,
                "extrapolated_epoch_minutes": whole * seconds / 60,
                "peak_gib": setting.peak_memory(),
                **kernels_of(
                    updates(optimisation, precision, batch, count=1, setting=setting),
                    setting.device,
                ),
            }
    return findings


STEPS: dict[str, Callable[[CachedDecoder], AbstractContextManager[None]]] = {
    "decoding": lambda decoder: nullcontext(),
    COMPILED: compiled_steps,
    "captured decoding": captured_steps,
}
"""Part -> the form of a decoder's step."""


def measure_decoding(part: str, setting: Setting) -> Findings:
    """Measure beam search and sampling of 5 captions of 20 steps.

    Extrapolates beam search of COCO's test images. Counts captions that equal those of plain steps.
    """
    if part == COMPILED and not setting.may_compile:
        return {"skipped": "compiled on a GPU alone, in the first minutes"}
    sizes = train.QUICK if setting.quick else train.Sizes(images=50)
    captioner = train.new_captioner(setting.model, sizes).to(setting.device).eval()
    made = train.make_batch(sizes)
    batch = train.Batch(*(tensor.to(setting.device) for tensor in vars(made).values()))

    def search() -> list[tuple[int, ...]]:
        return [image[0].tokens for image in train.search(captioner, batch)]

    def sample() -> list[tuple[int, ...]]:
        generator = torch.Generator(setting.device).manual_seed(0)
        draw = partial(sample_captions, count=train.BEAM_SIZE, max_length=train.STEPS)
        with torch.inference_mode():
            memory = captioner.encode(batch.features, batch.boxes, batch.region_mask)
            tokens = draw(captioner, memory, generator=generator)
        return [tuple(row) for row in tokens.flatten(0, 1).tolist()]

    expected = search(), sample()
    with STEPS[part](captioner.decoder):
        seconds, sampling = (setting.seconds(form, count=3) for form in (search, sample))
        actual = search(), sample()
        pairs = [zip(*both, strict=True) for both in zip(expected, actual, strict=True)]
        return {
            "sampled_captions_per_second": len(actual[1]) / sampling,
            "images_per_second": sizes.images / seconds,
            "extrapolated_test_seconds": COCO_TEST_IMAGES * seconds / sizes.images,
            "equal_captions": [sum(first == second for first, second in both) for both in pairs],
            "peak_gib": setting.peak_memory(),
            **kernels_of(search, setting.device),
        }


def check_resume(setting: Setting) -> Findings:
    """Kill trainings of both tasks in the middle, resume them, and compare bits."""
    return kill_and_resume(setting.device, setting.sizes, setting.model)


def check_process_group(setting: Setting) -> Findings:
    """Sum a tensor in a process group of one rank, by NCCL on a GPU."""
    backend = "nccl" if setting.is_gpu else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        values = torch.rand(2**10 if setting.quick else 2**26, device=setting.device)
        expected = values.clone()
        seconds = setting.seconds(lambda: dist.all_reduce(values), count=3)
        if not torch.equal(values, expected):
            raise RuntimeError(f"{backend} changed a tensor that it summed over one rank")
    finally:
        dist.destroy_process_group()
    return {"backend": backend, "bytes": values.nbytes, "seconds": seconds}


CHECKS: dict[str, Callable[[Setting], Findings]] = {
    "resume": check_resume,
    "extraction": measure_extraction,
    "grid": measure_grids,
    **{task: partial(measure_epochs, task) for task in TASKS.values()},
    "process group": check_process_group,
    # last: a capture that fails may leave the GPU unusable
    **{part: partial(measure_decoding, part) for part in STEPS},
}


@click.command()
@click.option("--device", default="cuda", show_default=True)
@click.option("--quick", is_flag=True, help="Use tiny sizes, only to check that it runs.")
@click.option("--pages", is_flag=True, help="Only write the last results into docs.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=ROOT / "benchmarks" / "results" / "gpu-check.json",
    help="JSON file of the findings.",
)
def main(device: str, quick: bool, pages: bool, output: Path) -> None:
    """Check a2 on a GPU; the exit code is 1 if a check fails."""
    if pages:
        page = with_table(PAGE.read_text(), json.loads(output.read_text()))
        PAGE.write_text(page)
        return
    print_machine()
    torch.backends.cudnn.allow_tf32 = False  # as in a2 train
    setting = Setting(torch.device(device), quick, time.monotonic() + SECONDS_TO_COMPILE)
    if setting.device.type == "cuda" and not torch.cuda.is_available():
        raise click.ClickException("no GPU is visible; run with --device cpu --quick")
    results: dict[str, object] = {"machine": machine(), "device": device, "quick": quick}
    failed = []
    output.parent.mkdir(parents=True, exist_ok=True)
    for name, check in CHECKS.items():
        started = time.perf_counter()
        try:
            findings = check(setting)
        except Exception as error:  # the other checks still run
            findings = {"failed": f"{type(error).__name__}: {error}"}
            failed.append(name)
        results[name] = {**findings, "check_seconds": time.perf_counter() - started}
        click.echo(f"{name}: {json.dumps(results[name])}")
        output.write_text(json.dumps(results, indent=1) + "\n")
    click.echo(f"written: {output}")
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
