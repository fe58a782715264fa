"""Fixtures of the pipeline's tests: a finished experiment over 40 scenes, ranks, a browser."""

import json
import multiprocessing
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
import torch.distributed as dist
import yaml
from filelock import FileLock

from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.config import load_config, override
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.metrics import java, score
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.training.detector.config import DetectorConfig
from tests.pipeline.experiments import CopiedExperiment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CONFIG = """
extract: {weights: calibrated-random, boxes: given, depth: 18, width: 8, roi_size: 7,
          min_side: 96, max_side: 96}
preprocess: {min_count: 1}
model: {width: 16, heads: 2, feed_forward: 32, encoder_layers: 1, decoder_layers: 1,
        box_geometry: linear}
train: {epochs: 8, batch_size: 8, warmup: 20, validation_beam_size: 2}
evaluate: {beam_size: 2, spice: false}
runtime: {device: cpu, threads: 1}
"""


@dataclass(frozen=True)
class FinishedExperiment:
    """A configuration file and the artifacts folder that its stages filled."""

    config_file: Path
    scenes: Path
    artifacts: Path

    def open(self, *overrides: str, artifacts: Path | None = None) -> Experiment:
        """Open the experiment, with overrides, over its artifacts folder or another one."""
        return Experiment(load_config(self.config_file, overrides), artifacts or self.artifacts)

    def directory(self, stage: str) -> Path:
        """Return the directory of a stage's result."""
        return self.open().result(stage, needed_by="a test").directory


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> FinishedExperiment:
    """Run all stages once for all test processes; tests must not change the results."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "tiny experiment"
    with FileLock(f"{folder}.lock"):
        return _make(folder)


def _make(folder: Path) -> FinishedExperiment:
    made = FinishedExperiment(folder / "config.yaml", folder / "scenes", folder / "artifacts")
    folder.mkdir(exist_ok=True)
    write_scenes(made.scenes, count=40, seed=0, side=96)
    places = {
        "images": str(made.scenes / "images"),
        "annotations": str(made.scenes / "dataset_coco.json"),
        "instances": str(made.scenes / "instances.json"),
    }
    made.config_file.write_text(f"data: {json.dumps(places)}\n{CONFIG}")
    with made.open() as opened:
        for name in opened.names:
            opened.run(name)
    return made


@pytest.fixture
def copy(experiment: FinishedExperiment, tmp_path: Path) -> CopiedExperiment:
    """Copy the finished experiment, which the test may change."""
    return CopiedExperiment(experiment, tmp_path)


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide every Java."""
    monkeypatch.setattr(java, "_wheel_folder", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def without_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score without METEOR, which takes seconds to start."""
    monkeypatch.setattr(score, "_JVM_SCORERS", {})


@pytest.fixture
def copied_scenes(experiment: FinishedExperiment, tmp_path: Path) -> tuple[Path, list[str]]:
    """Copy images and annotations, which a test may change; return the folder and overrides."""
    scenes = shutil.copytree(experiment.scenes, tmp_path / "Bilder von Émile 画" / "scenes")
    places = {
        "data.images": scenes / "images",
        "data.annotations": scenes / "dataset_coco.json",
        "data.instances": scenes / "instances.json",
    }
    return scenes, [override(field, path) for field, path in places.items()]


@pytest.fixture
def new(experiment: FinishedExperiment, tmp_path: Path) -> Callable[..., Experiment]:
    """Open the experiment over an empty artifacts folder, with overrides."""

    def open_new(*overrides: str) -> Experiment:
        return experiment.open(*overrides, artifacts=tmp_path / "new")

    return open_new


@dataclass(frozen=True)
class Labelled:
    """Scenes for a tiny detector: training images in `train`, validation images in `val`."""

    folder: Path

    def fields(self, **changes: object) -> dict[str, Any]:
        """Return the section `detector` for these scenes as plain values, with changes."""
        places = {
            "images": self.folder / "train" / "images",
            "labels": self.folder / "train" / "instances.json",
            "validation_images": self.folder / "val" / "images",
            "validation_labels": self.folder / "val" / "instances.json",
        }
        return {**{name: str(path) for name, path in places.items()}, **TINY_DETECTOR, **changes}

    def config(self, **changes: object) -> DetectorConfig:
        """Return the section `detector` for these scenes, with changes."""
        return DetectorConfig.model_validate(self.fields(**changes))


TINY_DETECTOR = yaml.safe_load(
    """
{depth: 18, width: 8, anchor_sizes: [16, 28, 48], anchor_ratios: [1.0], last_stage: strided,
 region_pooling: bilinear, proposal_width: 16, embedding_width: 4, attribute_width: 8,
 min_side: 64, max_side: 64, roi_size: 7, anchors: 64, proposals: 40, regions: 16, epochs: 2,
 batch_size: 4, optimiser: adamw, lr: 0.002, warmup: 2, checkpoint_every: 2,
 validation_proposals: 20}
"""
)


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Labelled:
    """Draw 12 training and 6 validation scenes; tests must not change them."""
    folder = tmp_path_factory.mktemp("labelled")
    write_scenes(folder / "train", count=12, seed=1, side=96, workers=1)
    write_scenes(folder / "val", count=6, seed=2, side=96, workers=1)
    return Labelled(folder)


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """Start Debian's Chromium without a window."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed; run: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[Callable[..., "Page"]]:
    """Open a file in the browser; any console message or request fails the test."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def open_page(
        path: Path,
        *,
        width: int = 1280,
        touch: bool = False,
        scheme: Literal["light", "dark"] = "light",
        state: str = "",
    ) -> "Page":
        context = browser.new_context(
            viewport={"width": width, "height": 900}, has_touch=touch, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                complaints.append(asked.url) if asked.url[:5] not in ("file:", "data:") else None
            ),
        )
        page.goto(path.as_uri() + state)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


Together = Callable[[int, Callable[[Ranks], Any]], list[Any]]


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Together:
    """Run work in forked processes, each with its `Ranks`; return their results."""

    def run(count: int, work: Callable[[Ranks], Any]) -> list[Any]:
        folder = tmp_path_factory.mktemp("together")
        context = multiprocessing.get_context("fork")
        children = [
            context.Process(target=_child, args=(folder, rank, count, work))
            for rank in range(count)
        ]
        for started in children:
            started.start()
        for started in children:
            started.join(120)
            started.kill()
        return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(count)]

    return run


def _child(folder: Path, rank: int, count: int, work: Callable[[Ranks], Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(folder / "store"), count),  # type: ignore[attr-defined]
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=600),
    )
    result = work(Ranks.current())
    (folder / str(rank)).write_bytes(pickle.dumps(result))
