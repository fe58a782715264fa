"""Tests of cross-entropy updates: losses, sides, clipping, parts, ranks and rates."""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from a2cap.data.batches.collate import Batch
from a2cap.data.captions.vocabulary import SPECIALS, Vocabulary
from a2cap.data.errors import InputError
from a2cap.model.alignment import caption_parameters, mask_parameters
from a2cap.model.alignment_config import AlignmentConfig
from a2cap.model.captioner import decoder_input
from a2cap.model.captioners.kinds import make_captioner
from a2cap.model.captioners.recurrent.gru_config import GruConfig
from a2cap.model.captioners.transformer.transformer import TransformerCaptioner
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.model.losses import two_losses
from a2cap.pipeline.captioning.model_description import ModelDescription
from a2cap.pipeline.captioning.saved_captioner import LoadedCaptioner
from a2cap.pipeline.runtime.training_precision import forward_precision
from a2cap.pipeline.training.captioner import cross_entropy
from a2cap.pipeline.training.captioner.cross_entropy import (
    CrossEntropyUpdater,
    learning_rate,
    start_from,
    warn_of_another_extractor,
)
from a2cap.pipeline.training.captioner.train_config import TrainConfig
from tests.model.kinds import FEATURE_WIDTH, KINDS, make

CONSTANT = TrainConfig(schedule="constant", lr=0.01, clip_norm=None)
BF16 = CONSTANT.model_copy(update={"precision": "bf16"})


def captioner(**alignment):
    torch.manual_seed(0)
    config = TransformerConfig(
        width=16,
        heads=2,
        feed_forward=32,
        encoder_layers=1,
        decoder_layers=2,
        dropout=0.0,
        alignment=AlignmentConfig(**alignment),
    )
    return TransformerCaptioner(config, feature_width=6, vocabulary_size=11)


@pytest.fixture
def batch():
    """Return two images with two captions each, one with fewer regions and tokens."""
    generator = torch.Generator().manual_seed(1)
    boxes = torch.rand(2, 3, 5, generator=generator)
    features = torch.randn(2, 3, 6, generator=generator)
    region_mask = torch.tensor([[True, True, True], [True, True, False]])
    tokens = torch.tensor([[[4, 5, 6, 2], [7, 2, 0, 0]], [[8, 9, 2, 0], [10, 4, 2, 0]]])
    return Batch(("1", "2"), features * region_mask[..., None], boxes, region_mask, tokens)


def update(updater, batch, number):
    """Make one update on a whole batch."""
    [losses] = updater.step([batch], number)
    return losses


def equal(model, other):
    """Compare two captioners bit for bit, buffers included."""
    tensors = other.state_dict()
    return all(torch.equal(tensor, tensors[name]) for name, tensor in model.state_dict().items())


def losses_of(model, batch, number=1):
    model.schedule_step.fill_(number)
    memory = model.encode(batch.features, batch.boxes, batch.region_mask)
    return two_losses(model, memory, batch.tokens)


def clipped_at(largest):
    return CONSTANT.model_copy(update={"clip_norm": largest})


def gradients(loss, parameters):
    derivatives = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, derivatives, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "parameters_of"), [("caption", caption_parameters), ("mask", mask_parameters)]
)
@pytest.mark.parametrize(
    ("fusion", "config"), [("gate", CONSTANT), ("max", CONSTANT), ("gate", BF16)]
)
def test_an_update_changes_each_side_by_its_own_loss_only(
    batch, side, parameters_of, fusion, config
):
    model = captioner(fusion=fusion)
    expected = copy.deepcopy(model)
    parameters = list(parameters_of(expected))
    with forward_precision(config.precision, torch.device("cpu")):
        loss = getattr(losses_of(expected, batch), side)
    for parameter, gradient in zip(parameters, gradients(loss, parameters), strict=True):
        parameter.grad = gradient
    torch.optim.Adam(parameters, lr=config.lr, betas=config.betas).step()
    before = [parameter.clone() for parameter in parameters_of(model)]

    update(CrossEntropyUpdater(model, config), batch, 1)

    after = list(parameters_of(model))
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    torch.testing.assert_close(after, parameters, rtol=1e-5, atol=1e-7)


def test_the_caption_loss_covers_all_tokens_and_eos_after_bos(batch):
    model = captioner()
    reported = update(CrossEntropyUpdater(copy.deepcopy(model), CONSTANT), batch, 1)
    model.schedule_step.fill_(1)
    memory = model.encode(batch.features, batch.boxes, batch.region_mask)
    log_probs = model(memory, decoder_input(batch.tokens, bos=1))
    chosen = log_probs.gather(-1, batch.tokens[..., None])[..., 0]
    is_token = batch.tokens != 0
    assert reported.means["loss"] == pytest.approx(-chosen[is_token].mean().item(), rel=1e-5)
    assert reported.amount == int(is_token.sum()) == 12


MASKS = ("mask_loss", "mean_mask", "mask_penalty", "delta_nll")


@pytest.mark.parametrize(
    ("fusion", "optimizers", "reported"),
    [("none", 1, ()), ("max", 2, MASKS), ("gate", 2, (*MASKS, "mean_gate"))],
)
def test_masks_have_an_optimizer_and_measurements_only_with_fusion(
    batch, fusion, optimizers, reported
):
    updater = CrossEntropyUpdater(captioner(fusion=fusion), CONSTANT)
    step = update(updater, batch, 1)
    assert len(updater.state_dict()["optimizers"]) == optimizers
    assert step.scalars.keys() == {"caption_loss", "lr", *reported}
    means = {name: step.scalars[name] for name in ("mask_loss", "mean_mask") if reported}
    assert step.means == {"loss": step.scalars["caption_loss"], "mask_loss": 0.0, **means}
    assert step.finite
    assert 0 < step.means.get("mean_mask", 0.5) < 1


def test_the_schedule_step_is_the_number_of_the_update(batch):
    model = captioner(fusion="decay")
    update(CrossEntropyUpdater(model, CONSTANT), batch, 7)
    assert model.schedule_step.item() == 7


def part(batch, rows):
    """Select images of a batch, cut to their longest caption and most regions."""
    length = int((batch.tokens[rows] != 0).any(dim=(0, 1)).sum())
    most = int(batch.region_mask[rows].any(dim=0).sum())
    return Batch(
        tuple(batch.image_ids[row] for row in rows),
        batch.features[rows, :most],
        batch.boxes[rows, :most],
        batch.region_mask[rows, :most],
        batch.tokens[rows, :, :length],
    )


@pytest.fixture
def uneven(batch):
    """Return three images whose captions have 6, 2 and 8 tokens: parts weigh differently."""
    others = torch.tensor([[[2, 0, 0, 0], [2, 0, 0, 0]], [[8, 9, 4, 5], [10, 4, 7, 2]]])
    tokens = torch.cat([batch.tokens[:1], others])
    rows = [0, 1, 0]
    return Batch(
        ("1", "2", "3"),
        batch.features[rows] * torch.tensor([1.0, 1.0, -1.0])[:, None, None],
        batch.boxes[rows],
        batch.region_mask[rows],
        tokens,
    )


@pytest.mark.parametrize("fusion", ["gate", "none"])
@pytest.mark.parametrize("rows", [[[0], [1], [2]], [[0, 2], [1]]])
def test_the_gradient_of_parts_is_that_of_the_whole_batch(uneven, fusion, rows):
    config = clipped_at(0.5)
    whole, parted = captioner(fusion=fusion), captioner(fusion=fusion)
    expected = update(CrossEntropyUpdater(whole, config), uneven, 1)
    parts = [part(uneven, some) for some in rows]
    [divided] = CrossEntropyUpdater(parted, config).step(parts, 1)
    for (name, parameter), other in zip(parted.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)
    assert_same_losses(divided, expected)


def assert_same_losses(actual, expected):
    assert actual.amount == expected.amount
    # the mean mask is one over regions too, by which parts are not weighed
    weighed = expected.scalars.keys() - {"mean_mask"}
    assert {name: actual.scalars[name] for name in weighed} == pytest.approx(
        {name: expected.scalars[name] for name in weighed}, rel=1e-4, abs=1e-6
    )
    assert actual.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("fusion", ["gate", "none"])
def test_ranks_make_the_same_update_as_a_single_rank(uneven, fusion, together):
    """The third rank has no part of the batch.

    In float64: Adam turns the rounding of a gradient that should be 0 into a step.
    """
    config = clipped_at(0.5)
    uneven = replace(uneven, features=uneven.features.double(), boxes=uneven.boxes.double())
    shares = [[part(uneven, [0]), part(uneven, [1])], [part(uneven, [2])], []]

    def updates(group):
        model = captioner(fusion=fusion).double()
        updater = CrossEntropyUpdater(model, config, group)
        updates = [updater.step(shares[group.rank], number) for number in (1, 2)]
        return updates, model.state_dict()

    alone = captioner(fusion=fusion).double()
    updater = CrossEntropyUpdater(alone, config)
    expected = [update(updater, uneven, number) for number in (1, 2)]
    made = together(3, updates)
    for steps, tensors in made:
        for [losses], of_one in zip(steps, expected, strict=True):
            assert_same_losses(losses, of_one)
        torch.testing.assert_close(tensors, alone.state_dict(), rtol=1e-6, atol=1e-8)
        assert all(torch.equal(tensors[name], made[0][1][name]) for name in tensors)
    assert [steps[0][0].image_ids for steps, _ in made] == [("1", "2"), ("3",), ()]


def test_bf16_gives_close_losses_and_keeps_state_in_float32(batch):
    model, other = captioner(), captioner()
    exact = update(CrossEntropyUpdater(model, CONSTANT), batch, 1)
    kept = CrossEntropyUpdater(other, BF16)
    rounded = update(kept, batch, 1)
    assert rounded.scalars == pytest.approx(exact.scalars, rel=0.02, abs=0.02)
    assert rounded.scalars != exact.scalars
    assert {parameter.dtype for parameter in other.parameters()} == {torch.float32}
    saved = [state["state"].values() for state in kept.state_dict()["optimizers"]]
    assert {state["exp_avg"].dtype for states in saved for state in states} == {torch.float32}


def test_a_batch_without_captions_is_rejected(batch):
    updater, bare = CrossEntropyUpdater(captioner(), CONSTANT), replace(batch, tokens=None)
    message = "^batch has no captions; train on batches of a CaptionDataset$"
    with pytest.raises(ValueError, match=message):
        update(updater, bare, 1)


@pytest.mark.parametrize(
    ("schedule", "lr", "rates"),
    [("constant", 0.3, [0.3, 0.3, 0.3]), ("noam", 0.6, [0.0375, 0.075, 0.0375])],
)
def test_an_update_uses_the_rate_of_its_number(batch, schedule, lr, rates):
    updater = CrossEntropyUpdater(captioner(), TrainConfig(schedule=schedule, lr=lr, warmup=4))
    for number, rate in zip((2, 4, 16), rates, strict=True):
        assert update(updater, batch, number).scalars["lr"] == pytest.approx(rate)
        groups = [adam.param_groups[0] for _, adam in updater.sides]
        assert [group["lr"] for group in groups] == pytest.approx([rate, rate])


@pytest.mark.parametrize("warmup", [1, 20, 10_000])
@pytest.mark.parametrize("width", [16, 512])
def test_noam_peaks_at_warmup_and_decays_with_the_root_of_the_step(warmup, width):
    config = TrainConfig(lr=2.0, warmup=warmup)
    peak = 2.0 / math.sqrt(width * warmup)
    assert learning_rate(config, 1, width=width) == pytest.approx(peak / warmup)
    assert learning_rate(config, warmup, width=width) == pytest.approx(peak)
    assert learning_rate(config, 4 * warmup, width=width) == pytest.approx(peak / 2)
    # the paper's recipe, in Cornia et al. 2020 the same: 1 / sqrt(5,120,000)
    assert learning_rate(TrainConfig(), 10_000, width=512) == pytest.approx(4.4194e-4, rel=1e-4)


def test_a_step_schedule_decays_every_few_epochs_and_a_cosine_ends_at_zero():
    step = TrainConfig(schedule="step", lr=2.0, warmup=4, decay=0.5, decay_every=2)
    rates = [learning_rate(step, number, width=1, steps_per_epoch=3) for number in range(1, 14)]
    assert rates == [0.5, 1, 1.5, 2, 2, 2, *[1] * 6, 0.5]
    cosine = TrainConfig(schedule="cosine", lr=2.0, warmup=1, epochs=4)
    rates = [learning_rate(cosine, number, width=1, steps_per_epoch=2) for number in range(1, 10)]
    assert rates == pytest.approx([1 + math.cos(math.pi * done / 8) for done in range(9)])
    linear = cosine.model_copy(update={"schedule": "linear"})
    rates = [learning_rate(linear, number, width=1, steps_per_epoch=2) for number in (1, 3, 9)]
    assert rates == pytest.approx([2, 1.5, 0])
    assert [c.rate_depends_on_epochs for c in (step, cosine, linear)] == [False, True, True]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adam", {"betas": (0.9, 0.98)}),
        ("gravesrmsprop", {}),
        ("sgd", {"momentum": 0.9, "nesterov": False}),
    ],
)
def test_the_optimiser_of_each_name_has_its_settings_on_both_sides(name, expected):
    config = TrainConfig(optimiser=name.removeprefix("graves"), weight_decay=0.1)
    for _, optimiser in CrossEntropyUpdater(make("gru"), config).sides:
        assert type(optimiser).__name__.lower() == name
        [group] = optimiser.param_groups
        assert {**expected, "weight_decay": 0.1}.items() <= group.items()


def test_scheduled_sampling_rises_by_epochs(batch, monkeypatch):
    rates = []

    def note(captioner, memory, tokens, *, rate):
        rates.append(rate)

    monkeypatch.setattr(cross_entropy, "scheduled_inputs", note)
    config = TrainConfig(scheduled_sampling=0.5, scheduled_sampling_epochs=4)
    updater = CrossEntropyUpdater(captioner(), config, steps_per_epoch=2)
    for number in range(1, 14, 2):
        updater.losses(batch, number, 0)
    assert rates == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]  # none in the first epoch


def test_label_smoothing_trains_and_is_reported_apart(batch):
    plain, smoothed = captioner(), captioner()
    config = CONSTANT.model_copy(update={"label_smoothing": 0.2})
    before = update(CrossEntropyUpdater(plain, CONSTANT), batch, 1)
    after = update(CrossEntropyUpdater(smoothed, config), batch, 1)
    assert after.means["loss"] == before.means["loss"]
    assert after.means["label_smoothing"] != 0
    assert "label_smoothing" not in before.means
    assert not equal(plain, smoothed)


def test_the_average_of_the_weights_is_validated_and_resumed(batch):
    model = captioner()
    config = CONSTANT.model_copy(update={"ema": 0.2})
    updater = CrossEntropyUpdater(model, config)
    [parameter, *_] = caption_parameters(model)
    expected = parameter.detach().clone()
    for number, decay in ((1, 2 / 11), (2, 0.2), (3, 0.2)):
        update(updater, batch, number)
        expected = decay * expected + (1 - decay) * parameter.detach()
    weights = copy.deepcopy(model)
    with updater.averaged():
        torch.testing.assert_close(parameter.detach(), expected)
        saved = copy.deepcopy((model.state_dict(), updater.state_dict()))
    assert equal(model, weights)

    resumed = captioner()
    other = CrossEntropyUpdater(resumed, config)
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    for each in (updater, other):
        update(each, batch, 4)
    assert equal(resumed, model)
    with updater.averaged(), other.averaged():
        assert equal(resumed, model)
        assert not equal(resumed, weights)


def test_both_sides_contain_every_parameter_once():
    model = captioner()
    sides = CrossEntropyUpdater(model, CONSTANT).sides
    held = [p for _, adam in sides for group in adam.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))
    assert all(isinstance(parameter, nn.Parameter) for parameter in held)


PLAIN = AlignmentConfig(fusion="none")


def vocabulary(*words):
    return Vocabulary((*SPECIALS, *words), "karpathy")


def new(config, words, *, region_width=FEATURE_WIDTH):
    sizes = {"feature_width": region_width, "vocabulary_size": len(words)}
    return make_captioner(config, **sizes)


def saved(config, words):
    description = ModelDescription(
        model=config,
        region_width=FEATURE_WIDTH,
        vocabulary_size=len(words),
        vocabulary_digest=words.digest,
        max_regions=None,
    )
    return LoadedCaptioner(new(config, words), words, description, torch.device("cpu"))


def test_a_start_with_other_attributes_is_refused():
    words, config = vocabulary("a", "dog", "runs", "fast", "by"), KINDS["lstm-a"]()
    start, captioner = saved(config, words), new(config, words)
    start_from(start, captioner, config, vocabulary("a", "dog", "runs", "fast", "by"))
    assert captioner.state_dict()["decoder.detector.score.bias"].equal(
        start.captioner.state_dict()["decoder.detector.score.bias"]
    )
    other = vocabulary("a", "cat", "runs", "fast", "by")
    with pytest.raises(InputError) as raised:
        start_from(start, new(config, other), config, other)
    assert str(raised.value) == (
        "train.start does not fit: it has the attribute 'dog' where this vocabulary has 'cat'; "
        "preprocess with the vocabulary that it was trained with, or name another captioner"
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not KINDS[kind]().attribute_tokens])
def test_known_words_and_all_other_tensors_are_taken_over(kind):
    old_words = vocabulary("a", "dog", "runs")
    words = vocabulary("dog", "a", "zebra", "sleeps", "quietly")
    start, config = saved(KINDS[kind](alignment=PLAIN), old_words), KINDS[kind]()
    captioner = new(config, words)
    fresh = {name: tensor.clone() for name, tensor in captioner.state_dict().items()}
    start_from(start, captioner, config, words)
    given = start.captioner.state_dict()
    for name, tensor in captioner.state_dict().items():
        if name.startswith(("decoder.embedding.", "decoder.output.")):
            old, kept = given[name], fresh[name]
            rows = [*old[:4], old[5], old[4], *kept[6:]]
            assert torch.equal(tensor, torch.stack(rows))
        else:
            assert torch.equal(tensor, given.get(name, fresh[name]))


@pytest.mark.parametrize(
    ("config", "region_width", "message"),
    [
        (
            GruConfig(width=16),
            FEATURE_WIDTH,
            "train.start does not fit: its kind is 'transformer', model.kind is 'gru'; "
            "set model.kind to 'transformer', or name another captioner",
        ),
        (
            TransformerConfig(**{**KINDS["transformer"]().model_dump(), "heads": 4}),
            FEATURE_WIDTH,
            "train.start does not fit: its heads is 2, model.heads is 4; set model.heads to 2, or "
            "name another captioner",
        ),
        (
            KINDS["transformer"](alignment=PLAIN),
            FEATURE_WIDTH,
            "train.start does not fit: "
            "'decoder.layers.0.cross_attention.alignment.gate.bias' has shape (2, 1, 1) there and "
            "None in the new captioner; set the section model as it was, or name another captioner",
        ),
        (
            KINDS["transformer"](),
            7,
            "train.start does not fit: 'encoder.embedding.feature.weight' has shape (16, 6) there "
            "and (16, 7) in the new captioner; set the section model as it was, or name another "
            "captioner",
        ),
    ],
)
def test_what_does_not_fit_is_named(config, region_width, message):
    words = vocabulary("dog")
    captioner = new(config, words, region_width=region_width)
    with pytest.raises(InputError) as raised:
        start_from(saved(KINDS["transformer"](), words), captioner, config, words)
    assert str(raised.value) == message


def test_a_start_on_regions_of_another_extractor_logs_a_warning(experiment, tmp_path, caplog):
    features = experiment.directory("extract")
    record = json.loads((features / "extractor.json").read_text())
    record["config"]["max_regions"] += 1
    (tmp_path / "extractor.json").write_text(json.dumps(record))
    warn_of_another_extractor(experiment.directory("train-xe"), features)
    warn_of_another_extractor(tmp_path, features)
    assert [line.getMessage() for line in caplog.records] == [
        "train.start was trained on regions of another extractor: extractor.json differs in "
        "config.max_regions; extract with its weights and configuration, unless the captioner "
        "shall learn other regions"
    ]
