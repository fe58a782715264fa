"""Configuration: defaults in one place, all problems at once, each with its dotted path."""

from pathlib import Path

import pytest
import yaml

from a2cap.data.errors import ConfigError
from a2cap.model.config import TransformerConfig
from a2cap.pipeline.config import Config, load_config, override
from a2cap.pipeline.engine.explain import RENAMED_FIELDS
from tests.data.messages import message_of
from tests.pipeline.config_fields import config_fields, plain_values

CONFIGS = Path(__file__).parents[2] / "configs"


def test_without_a_file_the_configuration_is_the_defaults():
    assert load_config() == Config()


def test_an_override_wins_over_the_file(tmp_path):
    path = tmp_path / "my config.yaml"
    path.write_text("train: {batch_size: 7, epochs: 3}\nmodel: {width: 64, heads: 4}\n")
    config = load_config(path, ["train.batch_size=9", "model.alignment.fusion=max"])
    assert (config.train.batch_size, config.train.epochs) == (9, 3)
    assert (config.model.width, config.model.alignment.fusion) == (64, "max")


def test_every_problem_is_reported_at_once_with_its_path_and_the_nearest_name(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("train: {bach_size: 7, epochs: many}\nmodle: {}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(path, ["evaluate.beam_size=0", "nonsense"])
    lines = str(raised.value).splitlines()
    assert lines[0] == "5 problems in the configuration:"
    assert lines[1] == "  'nonsense' is not an override; write section.field=value"
    assert set(lines[2:]) == {
        "  train.bach_size: unknown field; did you mean 'batch_size'?",
        "  train.epochs: input should be a valid integer, unable to parse string as an integer: "
        "'many'; see the field's docstring",
        "  modle: unknown field; did you mean 'model'?",
        "  evaluate.beam_size: input should be greater than or equal to 1: 0; "
        "see the field's docstring",
    }


@pytest.mark.parametrize(
    ("earlier", "today"),
    [item for item in RENAMED_FIELDS.items() if not item[0].startswith("inputs.")],
)
def test_an_earlier_field_name_is_answered_with_the_name_of_today(earlier, today):
    with pytest.raises(ConfigError) as raised:
        load_config(None, [f"{earlier}=1"])
    name = today.rpartition(".")[2]
    assert f"  {earlier}: unknown field; did you mean {name!r}?" in str(raised.value).splitlines()
    load_config(None, [f"{today}=1"])


@pytest.mark.parametrize(
    ("overrides", "problems"),
    [
        (
            ["runtime.xyzzy=1"],
            ["runtime.xyzzy: unknown field; valid names: device, workers, threads"],
        ),
        (
            ["extract.min_regions=300", "model.heads=7"],
            [
                "extract: min_regions is 300, above max_regions, 100; "
                "lower min_regions or raise max_regions",
                "model: width 512 does not give each of 7 heads an even width; "
                "choose a multiple of 14",
            ],
        ),
        (
            ["evaluate.groups=2"],
            [
                "evaluate: 5 beams cannot be divided among 2 groups; "
                "choose a number of groups that divides beam_size"
            ],
        ),
    ],
)
def test_unknown_and_contradicting_fields_are_reported(overrides, problems):
    first, *lines = message_of(load_config, None, overrides, error=ConfigError).splitlines()
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    assert first == f"{count} in the configuration:"
    assert lines == [f"  {problem}" for problem in problems]


def test_groups_that_divide_the_beams_are_accepted():
    assert load_config(None, ["evaluate.groups=2", "evaluate.beam_size=4"]).evaluate.groups == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "config file is not YAML: {path!r} "),
        ("- 1\n", "config file has no sections: {path!r}; see configs/ for examples"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_rejected(tmp_path, content, message):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert str(raised.value).startswith(message.format(path=str(path)))


def test_a_missing_file_is_reported(tmp_path):
    assert message_of(load_config, tmp_path / "none.yaml", error=ConfigError) == (
        f"config file not found: {str(tmp_path / 'none.yaml')!r}; check the path"
    )


def test_an_empty_file_is_the_defaults(tmp_path):
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert load_config(tmp_path / "c.yaml") == Config()


def test_the_resolved_configuration_reads_back_unchanged(tmp_path):
    config = load_config(None, ["train.lr=5e-4", "data.images=my images"])
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "config.yaml") == config


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
    gated, own = (plain_values(load_config(CONFIGS / f"{stem}.yaml")) for stem in ("a2-gate", name))
    assert {field: own[field] for field in own if own[field] != gated[field]} == PRESETS[name]


def test_a2_gate_is_the_defaults_except_for_its_paths():
    gated, defaults = map(plain_values, (load_config(CONFIGS / "a2-gate.yaml"), Config()))
    assert {field for field in gated if gated[field] != defaults[field]} == {
        "data.images",
        "data.annotations",
        "extract.weights",
        "scst.epochs",
    }


@pytest.mark.parametrize("name", ["a2-gate", *PRESETS])
def test_presets_state_their_purpose_and_their_measurements(name):
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    header = text[: text.index("\ndata:")]
    assert "# Reproduces: " in header
    assert "# Measured: nothing yet." in header
