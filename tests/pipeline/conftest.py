"""Fixtures of the pipeline's tests: a finished experiment over 40 scenes, ranks, a browser."""

import logging
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from filelock import FileLock

from a2cap.data.features.store import FeatureStore
from a2cap.data.features.writer import FeatureWriter
from a2cap.data.regions import NO_CLASS, Regions, cell_boxes
from a2cap.data.scenes.generate import write_scenes
from a2cap.pipeline.experiment import Experiment
from a2cap.pipeline.metrics import metric_table
from a2cap.pipeline.runtime import java
from a2cap.pipeline.runtime.distributed import Ranks
from a2cap.pipeline.training.detector.detector_config import DetectorConfig
from tests.experiments import (
    DETECTOR,
    CopiedExperiment,
    TinyExperiment,
    a2,
    data_overrides,
    make_experiment,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> TinyExperiment:
    """Run all stages once for all test processes; tests must not change the results."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "tiny experiment"
    with FileLock(f"{folder}.lock"):
        made = TinyExperiment(folder)
        if not made.config_file.exists():
            make_experiment(folder).run()
    return made


@pytest.fixture
def copy(experiment: TinyExperiment, tmp_path: Path) -> CopiedExperiment:
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
    for family in ("METEOR", "SPICE"):
        monkeypatch.delitem(metric_table.FAMILIES, family)


@pytest.fixture
def copied_scenes(experiment: TinyExperiment, tmp_path: Path) -> tuple[Path, list[str]]:
    """Copy images and annotations, which a test may change; return the folder and overrides."""
    scenes = shutil.copytree(experiment.scenes, tmp_path / "Bilder von Émile 画" / "scenes")
    return scenes, data_overrides(scenes)


@pytest.fixture
def new(experiment: TinyExperiment, tmp_path: Path) -> Callable[..., Experiment]:
    """Open the experiment over an empty artifacts folder, with overrides."""

    def open_new(*overrides: str) -> Experiment:
        return experiment.open(*overrides, artifacts=tmp_path / "new")

    return open_new


@pytest.fixture
def cells(experiment: TinyExperiment, tmp_path: Path) -> Path:
    """Write a store of 2 x 2 cells per image: what a grid would give, without its network."""
    store = FeatureStore(experiment.directory("extract") / "features.lmdb")
    with FeatureWriter(tmp_path / "cells") as writer:
        for image_id in store:
            regions = store[image_id]
            boxes = cell_boxes(2, (0, 0, regions.width, regions.height))
            features = np.resize(regions.features, (4, store.feature_width))
            none, scores = np.full(4, NO_CLASS, np.int32), np.ones(4, np.float32)
            size = (regions.width, regions.height)
            writer.add(image_id, Regions(boxes, features, scores, none, None, *size))
        writer.seal()
    return tmp_path / "cells"


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
        return {**{name: str(path) for name, path in places.items()}, **DETECTOR, **changes}

    def config(self, **changes: object) -> DetectorConfig:
        """Return the section `detector` for these scenes, with changes."""
        return DetectorConfig.model_validate(self.fields(**changes))


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Labelled:
    """Draw 12 training and 6 validation scenes; tests must not change them."""
    folder = tmp_path_factory.mktemp("labelled")
    write_scenes(folder / "train", count=12, seed=1, side=96)
    write_scenes(folder / "val", count=6, seed=2, side=96)
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


@pytest.fixture
def faults_of() -> "Callable[[Page], list[str]]":
    """Return what axe would find in a page with open folds, light and dark."""
    script = (Path(__file__).parent / "report" / "faults.js").read_text()

    def find(page: "Page") -> list[str]:
        faults: list[str] = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            faults += page.evaluate(script)
        return faults

    return find


Forked = Callable[[int, Callable[[int], Any]], list[Any]]
Together = Callable[[int, Callable[[Ranks], Any]], list[Any]]


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Forked:
    """Run work in forked processes, each with its number; return their results."""

    def run(count: int, work: Callable[[int], Any]) -> list[Any]:
        folder = tmp_path_factory.mktemp("forked")

        def save_result(number: int) -> None:
            torch.set_num_threads(1)
            (folder / str(number)).write_bytes(pickle.dumps(work(number)))

        context = multiprocessing.get_context("fork")
        children = [context.Process(target=save_result, args=(number,)) for number in range(count)]
        for started in children:
            started.start()
        for started in children:
            started.join(120)
            started.kill()
        return [pickle.loads((folder / str(number)).read_bytes()) for number in range(count)]

    return run


@pytest.fixture(scope="session")
def together(forked: Forked, tmp_path_factory: pytest.TempPathFactory) -> Together:
    """Run work in forked processes, each with its `Ranks`; return their results."""

    def run(count: int, work: Callable[[Ranks], Any]) -> list[Any]:
        store = tmp_path_factory.mktemp("together") / "store"

        def connect_and_work(rank: int) -> Any:
            dist.init_process_group(
                "gloo",
                store=dist.FileStore(str(store), count),  # type: ignore[attr-defined]
                rank=rank,
                world_size=count,
                timeout=timedelta(seconds=600),
            )
            return work(Ranks.current())

        return forked(count, connect_and_work)

    return run


class RankOutput(NamedTuple):
    """Exit code and output of a rank of a command."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def two_ranks(forked: Forked) -> Callable[..., list[RankOutput]]:
    """Run a command in two forked processes, with the environment that torchrun sets."""

    def run(*words: object) -> list[RankOutput]:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            "localhost", 0, is_master=True, wait_for_workers=False
        )
        shared = {
            **{"MASTER_ADDR": "localhost", "MASTER_PORT": store.port},
            **{"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": True},
        }

        def run_as(rank: int) -> RankOutput:
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
            os.environ.update({name: str(value) for name, value in {**shared, **ranks}.items()})
            logging.getLogger().handlers.clear()  # pytest's, in place of those of the command
            answer = a2(*words)
            return RankOutput(answer.exit_code, answer.stdout, answer.stderr)

        return forked(2, run_as)

    return run
