"""Configuration: defaults in one place, all problems at once, each with its dotted path."""

from pathlib import Path

import pytest
import yaml

from a2cap.data.errors import ConfigError
from a2cap.model.captioners.kinds import KINDS
from a2cap.model.captioners.transformer.transformer_config import TransformerConfig
from a2cap.pipeline.configuration import Config, load_config, override
from tests.data.messages import message_of
from tests.pipeline.config_fields import config_fields, plain_values

CONFIGS = Path(__file__).parents[2] / "configs"


def test_without_a_file_or_with_an_empty_one_the_configuration_is_the_defaults(tmp_path):
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert load_config() == load_config(tmp_path / "c.yaml") == Config()


def test_an_override_wins_over_the_file(tmp_path):
    path = tmp_path / "my config.yaml"
    path.write_text("train: {batch_size: 7, epochs: 3}\nmodel: {width: 64, heads: 4}\n")
    config = load_config(path, ["train.batch_size=9", "model.alignment.fusion=max"])
    assert (config.train.batch_size, config.train.epochs) == (9, 3)
    assert (config.model.width, config.model.alignment.fusion) == (64, "max")


def test_every_problem_is_reported_at_once_with_its_path_and_the_nearest_name(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("train: {bach_size: 7, epochs: many}\nmodle: {}\n")
    overrides = ["evaluate.beam_size=0", "nonsense"]
    lines = message_of(load_config, path, overrides, error=ConfigError).splitlines()
    assert lines[0] == "5 problems in the configuration:"
    assert lines[1] == ("  'nonsense' is not an override; write section.field=value, or model=KIND")
    assert set(lines[2:]) == {
        "  train.bach_size: unknown field; did you mean 'batch_size'?",
        "  train.epochs: input should be a valid integer, unable to parse string as an integer: "
        "'many'; choose a valid value: integer, >= 1, <= 1000000000; default 30. Most epochs; "
        "training ends earlier when `patience` runs out",
        "  modle: unknown field; did you mean 'model'?",
        "  evaluate.beam_size: input should be greater than or equal to 1: 0; choose a valid "
        "value: integer, >= 1, <= 1000; default 5. K, beams kept per image, or "
        "captions sampled; 1 beam is greedy decoding",
    }


PROBLEMS = {
    "runtime.xyzzy=1": [
        "runtime.xyzzy: unknown field; valid names: device, workers, threads, compile, ray, name"
    ],
    "extract.min_regions=300 model.heads=7": [
        "extract: min_regions is 300, above max_regions, 100; lower min_regions or raise "
        "max_regions",
        "model: width 512 does not give each of 7 heads an even width; choose a multiple of 14",
    ],
    "data.ids=path data.instances=boxes.json": [
        "data: ids is 'path', but data.instances names images by number; leave one of them out"
    ],
    "model.kind=up-dwn": [
        "model.kind: unknown kind 'up-dwn'; did you mean 'up-down'? Kinds: "
        + ", ".join([*KINDS, "or module:Class of an installed package"])
    ],
    "model.kind=up-down model.heads=4 model.alignment.fussion=gate": [
        "model: up-down has no heads (of transformer); leave them out, or start from the "
        "defaults of up-down with --set model=up-down",
        "model.alignment.fussion: unknown field; did you mean 'fusion'?",
    ],
    "model.kind=gru model.memory_slots=4 model.gate=none model.widht=8": [
        "model: gru has no memory_slots, gate (of other kinds); leave them out, or start from "
        "the defaults of gru with --set model=gru",
        "model.widht: unknown field; did you mean 'width'?",
    ],
    "model.kind=nic model.alignment.fusion=gate": [
        "model: alignment.fusion is 'gate', but this captioner has no attention to align; set "
        "alignment.fusion to none"
    ],
    "model=lstm-a train.grouping=caption": [
        "train.grouping is 'caption', but captioner 'lstm-a' learns attributes from all "
        "captions of an image together; set train.grouping to image"
    ],
    "evaluate.ensemble=[a] evaluate.ensemble_weights=[1]": [
        "evaluate: ensemble_weights are [1.0] for 2 captioners; give a positive number for "
        "each, in their order, or none"
    ],
    "model.kind=nic model.attention_dropout=0.1": [
        "model: attention_dropout is 0.1, but this captioner has no attention; set "
        "attention_dropout to 0"
    ],
    "model.kind=m2 model.prophet=1": [
        "model: prophet is 1.0, but Prophet Attention reads one state of each region, and the "
        "decoder of m2 those of every encoder layer; set prophet to 0, or choose kind "
        "transformer"
    ],
    "model=gru model.attention=none train.supervision=0.5": [
        "train.supervision is 0.5, but captioner 'gru' has no attention; set train.supervision to 0"
    ],
    "scst.reward=statistics:fmean scst.bleu_weight=0.5": [
        "scst.bleu_weight is 0.5, but scst.reward replaces the reward that it belongs to; leave "
        "scst.bleu_weight or scst.reward out"
    ],
    "train.select=cider": [
        "train.select: not a valid value: 'cider'; did you mean 'CIDEr'? Valid: CIDEr, BLEU-4, "
        "METEOR, loss; default 'CIDEr'. Validation figure that selects the best epoch and that "
        "`patience` waits for: of the decoded captions (Xu et al. 2015 select by BLEU), or the "
        "loss on the reference captions"
    ],
    "model.kind=up-down model.alignment.aligned_layers=[2]": [
        "model.alignment: alignment.aligned_layers is [2], this kind has one attention; choose "
        '"all"'
    ],
}
"""Overrides, separated by spaces -> problems."""


@pytest.mark.parametrize(("overrides", "problems"), PROBLEMS.items())
def test_unknown_and_contradicting_fields_are_reported(overrides, problems):
    first, *lines = message_of(load_config, None, overrides.split(), error=ConfigError).splitlines()
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    assert first == f"{count} in the configuration:"
    assert lines == [f"  {problem}" for problem in problems]


def test_an_error_of_a_union_is_one_line_in_the_words_of_the_field():
    [_, line] = message_of(
        load_config, None, ["extract.grid_backbone=resnet1810"], error=ConfigError
    ).splitlines()
    assert line.startswith(
        "  extract.grid_backbone: not a valid value: 'resnet1810'; did you mean 'resnet18'? Valid: "
    )
    [_, line] = message_of(
        load_config, None, ["model.alignment.aligned_layers=[0]"], error=ConfigError
    ).splitlines()
    assert line.startswith("  model.alignment.aligned_layers")
    assert "literal" not in line
    assert "tuple" not in line


@pytest.mark.parametrize("kind", KINDS)
def test_another_captioner_with_the_same_recipe_is_one_override(kind, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "model: {heads: 4, norm: pre, width: 64, alignment: {fusion: max}}\ntrain: {epochs: 3}\n"
    )
    config = load_config(path, [f"model={kind}"])
    assert config.model == KINDS[kind].settings(kind=kind)
    assert config.train.epochs == 3
    assert load_config(path, [f"model={kind}", "model.width=32"]).model.width == 32
    assert (config.model.alignment.fusion == "none") == (not config.model.has_attention)


def test_a_recipe_that_a_kind_does_not_have_is_rejected(monkeypatch):
    monkeypatch.setattr(KINDS["gru"].settings, "recipes", {"authors": {"train": {"lr": 0.5}}})
    assert load_config(None, ["model=gru", "train.optim=authors"]).train.lr == 0.5
    [_, line] = message_of(
        load_config, None, ["model=gru", "train.optim=modern"], error=ConfigError
    ).splitlines()
    assert line == (
        "  train.optim is 'modern', but captioner 'gru' has no such recipe; leave train.optim out, "
        "and set train.lr and other fields"
    )


NOT_YAML = "config file is not YAML: {path!r} "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", NOT_YAML),
        ("- 1\n", "config file has no sections: {path!r}; see configs/ for examples"),
        ("train: {lr: 1, lr: 2}", NOT_YAML + "(duplicate key 'lr' in \"<unicode string>\", line 1"),
        ("train: " + 5000 * "[", NOT_YAML + "(nested too deeply); fix it"),
        ("train: {seed: %s}" % (5000 * "1"), NOT_YAML + "(a value does not fit its tag: Exceeds"),
        ("train: {seed: !!int x}", NOT_YAML + "(a value does not fit its tag: invalid literal"),
        ("train: {seed: !!bool x}", NOT_YAML + "(a value does not fit its tag: 'x'); fix it"),
        ("train: !!python/object:os.system {}", NOT_YAML + "(could not determine a constructor"),
    ],
    ids=["open", "list", "duplicate", "deep", "digits", "integer", "boolean", "python"],
)
def test_a_file_that_is_not_a_configuration_is_rejected(tmp_path, content, message):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    text = message_of(load_config, path, error=ConfigError)
    assert text.startswith(message.format(path=str(path)))
    assert "\n" not in text


def test_keys_that_are_not_text_are_unknown_fields(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("null: 1\n3: 1\ntrain: {3: 1}")
    _, *lines = message_of(load_config, path, error=ConfigError).splitlines()
    assert [line.partition(" valid names: ")[0] for line in lines] == [
        "  train.3: unknown field;",
        "  None: unknown field;",
        "  3: unknown field;",
    ]


def test_dates_are_text_and_merged_keys_may_be_overridden(tmp_path):
    assert load_config(None, ["evaluate.baseline_name=2026-01-31"]).evaluate.baseline_name == (
        "2026-01-31"
    )
    path = tmp_path / "c.yaml"
    path.write_text("train: &both {lr: 2, epochs: 3}\nscst: {<<: *both, epochs: 1}\n")
    assert load_config(path).scst.epochs == 1


LIMITS = {
    "runtime.threads": 1024,
    "runtime.workers": 256,
    "evaluate.beam_size": 1000,
    "evaluate.length_penalty": 10,
    "model.decoder_layers": 256,
}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("train.seed=-1", "train.seed: input should be greater than or equal to 0: -1; "),
        (f"scst.seed={2**63}", f"scst.seed: input should be less than {2**63}: {2**63}; "),
        ("train.betas=[0.9, 1.0]", "train.betas.1: input should be less than 1: 1.0; "),
        *(
            (f"{field}={most + 1}", f"{field}: input should be less than or equal to {most}: ")
            for field, most in LIMITS.items()
        ),
        ("train.batch_size=0x" + 5000 * "f", "train.batch_size: input should be less than or "),
        ("train.batch_size=[" + 5000 * "1, " + "]", "train.batch_size: input should be a valid "),
        ("extract.max_side={1: 2}", "extract.max_side: input should be a valid integer: {1: 2}; "),
        ("model.alignment=2026-01-31", "model.alignment: input should be a valid dictionary or "),
    ],
    ids=lambda value: value.partition("=")[0],
)
def test_a_value_beyond_the_limits_of_its_field_is_one_line(override, problem):
    head, *lines = message_of(load_config, None, [override], error=ConfigError).splitlines()
    assert head == "1 problem in the configuration:"
    [line] = lines
    assert line.startswith(f"  {problem}")
    assert "; choose a valid value: " in line
    assert len(line) < 700


def test_a_thousand_problems_are_counted():
    text = message_of(load_config, None, [f"detector.anchor_sizes={[0] * 1000}"], error=ConfigError)
    assert text.startswith("1,001 problems in the configuration:\n  detector.anchor_sizes.0: ")
    assert text.endswith("\n  and 981 more")


@pytest.mark.parametrize("name", ["/dev/zero", "long.yaml"])
def test_a_file_beyond_any_configuration_is_not_read_to_its_end(tmp_path, name):
    path = tmp_path / name
    if not path.exists():
        path.write_text("#" * 1_000_001)
    assert message_of(load_config, path, error=ConfigError) == (
        f"config file has more than 1,000,000 bytes: {str(path)!r}; name a configuration"
    )


def test_an_alias_of_aliases_is_printed_shortened(tmp_path):
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join([*lines, "train: {seed: *a11}"]))
    assert len(message_of(load_config, path, error=ConfigError)) < 5000


def test_a_missing_file_is_reported(tmp_path):
    assert message_of(load_config, tmp_path / "none.yaml", error=ConfigError) == (
        f"config file not found: {str(tmp_path / 'none.yaml')!r}; check the path"
    )


@pytest.mark.parametrize("value", ["plain", "with space", "a: b", "ünïcode/7", "[x", "007", "null"])
def test_an_override_carries_any_path(value):
    assert load_config(None, [override("data.images", value)]).data.images == Path(value)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_shipped_configs_load_and_begin_with_a_comment(path):
    load_config(path)
    assert path.read_text().startswith("# ")


def test_every_field_has_a_description():
    fields = {**Config.model_fields, **TransformerConfig.model_fields, **config_fields()}
    assert [name for name, field in fields.items() if field.description is None] == []
    assert yaml.safe_load(Config().to_yaml())["train"]["batch_size"] == 10


PRESETS = {
    "a2-decay": {"model.alignment.fusion": "decay"},
    "a2-moving": {"model.alignment.fusion": "moving"},
    "a2-max": {"model.alignment.fusion": "max"},
    "baseline": {"model.alignment.fusion": "none"},
    "m2-compat": {
        "preprocess.vocabulary": "m2",
        "train.grouping": "caption",
        "train.batch_size": 50,
        "scst.baseline": "beam_mean",
        "scst.idf": "caption",
        "scst.eos": False,
        "evaluate.collapse_repeats": True,
    },
}
"""What each preset changes of a2-gate."""


@pytest.mark.parametrize("name", PRESETS)
def test_presets_differ_from_a2_gate_only_in_the_listed_fields(name):
    gate, preset = (plain_values(load_config(CONFIGS / f"{n}.yaml")) for n in ("a2-gate", name))
    assert {field: v for field, v in preset.items() if v != gate[field]} == PRESETS[name]


def test_a2_gate_is_the_defaults_except_for_its_paths():
    gated, defaults = map(plain_values, (load_config(CONFIGS / "a2-gate.yaml"), Config()))
    assert {field for field in gated if gated[field] != defaults[field]} == {
        *("data.images", "data.annotations", "extract.weights", "scst.epochs")
    }


RECIPE_NAMES = [(kind, optim) for kind, known in KINDS.items() for optim in known.settings.recipes]


@pytest.mark.parametrize(("kind", "optim"), RECIPE_NAMES)
def test_a_recipe_gives_the_fields_that_are_not_set(kind, optim, tmp_path):
    config_file = tmp_path / "config.yaml"
    options = [f"model.kind={kind}", f"train.optim={optim}"]
    config = load_config(None, [*options, "train.seed=7"])
    for section, fields in KINDS[kind].settings.recipes[optim].items():
        values = getattr(config, section)
        assert {name: getattr(values, name) for name in fields} == fields
    assert config.train.seed == 7
    config_file.write_text(config.to_yaml())
    assert load_config(config_file) == config
    assert load_config(None, [*options, "train.lr=0.5"]).train.lr == 0.5


@pytest.mark.parametrize("name", ["a2-gate", *PRESETS])
def test_presets_state_their_purpose_and_their_measurements(name):
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    header = text[: text.index("\ndata:")]
    assert "# Reproduces: " in header
    assert "# Measured: nothing yet." in header


def test_a_bare_name_is_a_configuration_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(Path("a2-gate")) == load_config(CONFIGS / "a2-gate.yaml")
    Path("a2-gate").write_text("train: {epochs: 77}")
    assert load_config(Path("a2-gate")).train.epochs == 77
    names = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
    assert message_of(load_config, Path("a2-gat"), error=ConfigError) == (
        f"config not found: 'a2-gat'; did you mean 'a2-gate'? Name a file, or one of {names}"
    )
