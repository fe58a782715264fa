"""Compiled updates: one graph, few shapes, equal results, and none where compiling fails."""

import logging
import os

import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

from a2cap.data.batches.collate import EXACT, FEW_SHAPES, Batch, Item, collate
from a2cap.data.errors import A2Error
from a2cap.data.regions import Regions
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.errors import ModelError
from a2cap.pipeline.runtime.distributed import SINGLE
from a2cap.pipeline.training.captioner.cross_entropy import CrossEntropyUpdater
from a2cap.pipeline.training.captioner.self_critical import SelfCriticalUpdater
from a2cap.pipeline.training.captioner.train_config import ScstConfig, TrainConfig
from a2cap.pipeline.training.compiled_pass import MOST_SHAPES, CompiledPass
from tests.data.messages import message_of

CPU = torch.device("cpu")
# the first step of Adam is as large for a gradient that is rounding alone
CONFIG = TrainConfig(batch_size=2, schedule="constant", lr=1e-6, clip_norm=None)


def item(name, *, regions, lengths):
    generator = np.random.default_rng(int(name))
    tokens = np.zeros((len(lengths), 21), np.int64)
    for row, length in enumerate(lengths):
        tokens[row, : length - 1] = generator.integers(4, 11, length - 1)
        tokens[row, length - 1] = 2
    corners = generator.random((regions, 2, 2), np.float32).cumsum(axis=1) * 50
    boxes = corners.reshape(regions, 4).astype(np.float32)
    features = generator.random((regions, 6), np.float32)
    scores, classes = np.ones(regions, np.float32), np.zeros(regions, np.int32)
    return Item(name, Regions(boxes, features, scores, classes, None, 100, 100), tokens)


ITEMS = [item("1", regions=3, lengths=(4, 2)), item("2", regions=2, lengths=(5, 3))]


def captioner(*, fusion="gate", prophet=0.0):
    torch.manual_seed(0)
    config = TransformerConfig(
        **{"width": 16, "heads": 2, "feed_forward": 32, "dropout": 0.0, "prophet": prophet},
        **{"encoder_layers": 1, "decoder_layers": 1, "alignment": AlignmentConfig(fusion=fusion)},
    )
    return TransformerCaptioner(config, feature_width=6, vocabulary_size=11)


class Boxes:
    """Regions that every word should attend to: the first one; padding names none."""

    def targets(self, part):
        images, captions, length = part.tokens.shape
        targets = torch.zeros(images, captions * length, part.region_mask.shape[1])
        targets[..., 0] = (part.tokens != 0).flatten(1)
        return targets


@pytest.fixture
def graphs(monkeypatch):
    """Compile without code generation; return the counter of graphs of each pass."""
    counters, compile_pass = [], torch.compile
    torch._dynamo.reset()

    def count(forward, **options):
        counters.append(CompileCounterWithBackend("aot_eager"))
        return compile_pass(forward, **{**options, "mode": None, "backend": counters[-1]})

    monkeypatch.setattr(torch, "compile", count)
    return counters


def rewards(image_ids, captions):
    return (captions == 5).sum(dim=-1).double()


def assert_equal_updates(plain, compiled, batch, padded, *, updates=2):
    """Make updates by both, on a batch and on the same batch in the shape of a compiled update."""
    for number in range(1, updates + 1):
        [expected] = plain.step([batch], number)
        [reported] = compiled.step([padded], number)
        assert reported.means == pytest.approx(expected.means, abs=1e-5)
        for (theirs, _), (ours, _) in zip(plain.sides, compiled.sides, strict=True):
            for parameter, other in zip(ours, theirs, strict=True):
                if other.grad is not None:
                    torch.testing.assert_close(parameter.grad, other.grad, atol=1e-5, rtol=1e-5)


def warnings(caplog):
    """Return a2's warnings; torch logs its steps."""
    return [text for name, _, text in caplog.record_tuples if name.startswith("a2cap")]


def both_batches():
    return collate(ITEMS), collate(ITEMS, rounding=FEW_SHAPES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "fields", "supervision"),
    [
        ({}, {}, None),
        ({"fusion": "none"}, {"label_smoothing": 0.1}, None),
        ({"prophet": 0.5}, {"supervision": 0.5, "precision": "bf16"}, Boxes()),
    ],
    ids=["two losses", "one loss", "penalties"],
)
def test_a_cross_entropy_update_is_one_graph_with_equal_gradients(
    graphs, caplog, model, fields, supervision
):
    config = CONFIG.model_copy(update=fields)
    plain, compiled = (
        CrossEntropyUpdater(captioner(**model), config, supervision=supervision, compiles=compiles)
        for compiles in (False, True)
    )
    assert_equal_updates(plain, compiled, *both_batches())
    assert [counter.frame_count for counter in graphs] == [1]
    assert not warnings(caplog)  # a graph break would be one


@pytest.mark.slow
def test_the_scores_of_a_self_critical_update_are_one_graph_with_equal_gradients(graphs, caplog):
    config = ScstConfig(
        **{"batch_size": 2, "lr": 1e-6, "clip_norm": None, "mask": "continued", "max_length": 12}
    )
    plain, compiled = (
        SelfCriticalUpdater(captioner(), config, rewards, compiles=compiles)
        for compiles in (False, True)
    )
    assert_equal_updates(plain, compiled, *both_batches())
    assert [counter.frame_count for counter in graphs] == [1]
    assert not warnings(caplog)


@pytest.fixture
def inductor(tmp_path, monkeypatch):
    """Return an uncompiled updater and one that inductor compiles."""
    if "A2_LONG" not in os.environ:
        pytest.skip("takes 38 s: set A2_LONG=1")
    # its usual folder is that of all processes
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    return [
        CrossEntropyUpdater(captioner(), CONFIG, compiles=compiles) for compiles in (False, True)
    ]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_inductor_compiles_an_update_with_equal_gradients(inductor, caplog):
    assert_equal_updates(*inductor, *both_batches())
    assert not warnings(caplog)


@pytest.mark.slow
def test_a_missing_compiler_of_inductor_is_one_warning(inductor, caplog):
    caplog.set_level(logging.WARNING, "a2cap")
    with torch._inductor.config.patch({"cpp.cxx": (None, "/nonexistent")}):  # as CXX sets it
        assert_equal_updates(*inductor, *both_batches())
    [warning] = warnings(caplog)
    assert warning.startswith("updates run uncompiled: InvalidCxxCompiler: ")


def mixed_batches(rounding=FEW_SHAPES):
    """Yield batches with lengths as in COCO: 11.5 tokens with the end, deviation 2.6."""
    generator = np.random.default_rng(3)
    for number in range(20):
        lengths = np.clip(generator.normal(11.5, 2.6, (10, 5)).round(), 3, 21).astype(int)
        counts = generator.integers(10, 101 if number % 3 else 50, 10)
        rows = zip(counts, lengths, strict=True)
        items = [item("1", regions=regions, lengths=row) for regions, row in rows]
        yield collate(items, rounding=rounding)


def test_an_epoch_of_mixed_lengths_has_at_most_four_shapes():
    exact, few = (
        {(b.features.shape, b.tokens.shape, b.positions.shape) for b in mixed_batches(rounding)}
        for rounding in (EXACT, FEW_SHAPES)
    )
    assert len(exact) > 15
    assert len(few) <= 4


def cross_entropy_updater():
    return CrossEntropyUpdater(captioner(), TrainConfig(batch_size=10), compiles=True)


def self_critical_updater():
    config = ScstConfig(batch_size=10, mask="continued", max_length=20)
    return SelfCriticalUpdater(captioner(), config, rewards, compiles=True)


@pytest.mark.slow
@pytest.mark.parametrize("make", [cross_entropy_updater, self_critical_updater])
def test_an_epoch_of_mixed_lengths_compiles_four_graphs(monkeypatch, caplog, make):
    graphs, compile_pass = [], torch.compile
    torch._dynamo.reset()

    def trace(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(
        torch, "compile", lambda forward, **_: compile_pass(forward, backend=trace, dynamic=False)
    )
    updater = make()
    for number, batch in enumerate(mixed_batches(), 1):
        updater.step([batch], number)
    assert len(graphs) == len(updater.compiled._shapes) == 4
    assert not warnings(caplog)


class Graph:
    """A stand-in for torch.compile that counts what is compiled, or fails."""

    def __init__(self, monkeypatch, error=None):
        self.compiled, self.error = [], error
        monkeypatch.setattr(torch, "compile", lambda forward, **options: self._make(forward))

    def _make(self, forward):
        def run(*arguments):
            if self.error is not None:
                raise self.error
            self.compiled.append(arguments[0].shape)
            return forward(*arguments)

        return run


def double(values):
    return 2 * values


def test_smaller_batches_and_shapes_too_many_run_uncompiled(monkeypatch):
    graph = Graph(monkeypatch)
    run = CompiledPass(double, CONFIG, SINGLE, CPU)
    shapes = [(1, 3), *((2, width) for width in range(MOST_SHAPES + 2)), (2, 0)]
    for shape in shapes:
        assert torch.equal(run(torch.ones(shape)), torch.full(shape, 2.0))
    assert graph.compiled == [*((2, width) for width in range(MOST_SHAPES)), (2, 0)]


def test_a_compiler_that_fails_is_one_warning_and_updates_run_uncompiled(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    Graph(monkeypatch, RuntimeError("no working C++ compiler: 'g++'\nset TORCH_LOGS"))
    run = CompiledPass(double, CONFIG, SINGLE, CPU)
    assert [run(torch.full((2,), value)).tolist() for value in (1, 2)] == [[2, 2], [4, 4]]
    assert caplog.messages == [
        "updates run uncompiled: no working C++ compiler: 'g++'; set runtime.compile to off, or if "
        "no compiler works, install one of C++ (on a GPU Triton too)"
    ]


def test_scheduled_sampling_runs_uncompiled_and_says_so(caplog):
    config = CONFIG.model_copy(update={"scheduled_sampling": 0.5})
    assert CrossEntropyUpdater(captioner(), config, compiles=True).compiled is None
    assert caplog.messages == ["updates run uncompiled: train.scheduled_sampling is above 0"]


class Uncompilable(torch.autograd.Function):
    """A backward pass that fails."""

    @staticmethod
    def forward(context, loss):
        return loss.clone()

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError("Triton cannot compile this kernel")


def without_backward(forward):
    def run(*arguments):
        loss, measured = forward(*arguments)
        return Uncompilable.apply(loss), measured

    return run


def traced_without_backward(forward, compile_pass=torch.compile):
    def fail(graph, inputs):
        raise RuntimeError("Triton cannot compile this kernel")

    backend = aot_autograd(fw_compiler=lambda graph, inputs: graph, bw_compiler=fail)
    return compile_pass(forward, backend=backend)


@pytest.mark.parametrize(
    "compile_pass",
    [without_backward, pytest.param(traced_without_backward, marks=pytest.mark.slow)],
)
def test_a_backward_pass_that_fails_to_compile_begins_the_update_again(
    monkeypatch, caplog, compile_pass
):
    caplog.set_level(logging.WARNING, "a2cap")
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda forward, **options: compile_pass(forward))
    plain, compiled = (
        CrossEntropyUpdater(captioner(), CONFIG, compiles=compiles) for compiles in (False, True)
    )
    assert_equal_updates(plain, compiled, *both_batches())
    [warning] = warnings(caplog)
    assert warning.startswith("updates run uncompiled: ")
    assert "Triton cannot compile this kernel" in warning


def test_an_error_before_a_backward_pass_is_not_taken_for_a_compiler_that_fails(
    monkeypatch, caplog
):
    caplog.set_level(logging.WARNING, "a2cap")
    monkeypatch.setattr(torch, "compile", lambda forward, **options: forward)
    updater = CrossEntropyUpdater(captioner(), CONFIG, compiles=True)
    batch, _ = both_batches()
    updater.step([batch], 1)  # the first of its shape
    errors = [KeyError("of a reward")]
    monkeypatch.setattr(updater, "losses", lambda *arguments: raise_(errors.pop()))
    with pytest.raises(KeyError):
        updater.step([batch], 2)
    assert not warnings(caplog)


def raise_(error):
    raise error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: unspecified launch failure"), A2Error("a rank was lost"), "known"],
)
def test_other_errors_of_a_compiled_update_are_raised(monkeypatch, caplog, error):
    Graph(monkeypatch)
    run = CompiledPass(double, CONFIG, SINGLE, CPU)
    for _ in range(2 if error == "known" else 1):
        run(torch.ones(2))
    assert not run.gives_up(RuntimeError(error) if error == "known" else error)
    assert not caplog.records


def test_a_compiled_pass_without_memory_is_not_taken_for_a_compiler_that_fails(monkeypatch, caplog):
    Graph(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    run = CompiledPass(double, CONFIG, SINGLE, CPU)
    with pytest.raises(torch.OutOfMemoryError):
        run(torch.ones(2))
    assert not caplog.records


def test_halves_of_a_batch_without_memory_are_compiled_and_earlier_graphs_freed(monkeypatch):
    resets, options, sizes = [], [], []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(len(sizes)))

    def compile_pass(forward, **settings):
        options.append(settings["mode"])

        def run(*arguments):
            sizes.append(len(arguments[0]))
            if sizes[-1] > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return forward(*arguments)

        return run

    monkeypatch.setattr(torch, "compile", compile_pass)
    config = CONFIG.model_copy(update={"batch_size": 4})
    items = [item(str(n), regions=3, lengths=(4 + n % 3, 2)) for n in range(1, 5)]
    plain, compiled = (CrossEntropyUpdater(captioner(), config) for _ in range(2))
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    gpu = torch.device("cuda")  # which only the options depend on
    compiled._pass = compiled.compiled = CompiledPass(compiled._forward, config, SINGLE, gpu)
    assert_equal_updates(plain, compiled, collate(items), collate(items, rounding=FEW_SHAPES))
    assert (sizes, resets) == ([4, 2, 2, 2, 2], [1])
    # a replay would overwrite the gradients of the first half
    assert options == ["reduce-overhead", None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "wrong", "problem"),
    [
        (
            "region_mask",
            False,
            "an image has no region: position 0 of the batch; leave the image out, or extract it "
            "again",
        ),
        (
            "tokens",
            11,
            "token is out of the vocabulary: 11, the model has 11 tokens; encode the captions with "
            "the vocabulary of its training",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["cross-entropy", "self-critical"])
def test_a_batch_is_checked_while_it_is_on_the_cpu(monkeypatch, kind, field, wrong, problem):
    updater = CrossEntropyUpdater(captioner(), CONFIG)
    if kind == "self-critical":
        updater = SelfCriticalUpdater(captioner(), ScstConfig(), rewards)
    monkeypatch.setattr(Batch, "to", None)  # is not reached
    batch = collate(ITEMS, rounding=FEW_SHAPES)
    getattr(batch, field)[0] = wrong
    assert message_of(updater.step, [batch], 1, error=ModelError) == problem
