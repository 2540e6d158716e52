"""Settings of ``hf-lwal train`` that no training could have are refused before data or model are looked at."""

import json
from argparse import ArgumentTypeError

import pytest
import torch

from hf_lwal.cli import main as cli
from hf_lwal.cli.settings_file import read_settings
from hf_lwal.cli.train import portable
from hf_lwal.cli.train_checks import check_given, rehearse
from hf_lwal.cli.train_flags import build_arguments, training_values
from hf_lwal.errors import CommandError

REFUSED = [
    (["--metric-for-best-model", "f1"], "--metric-for-best-model is 'f1', but accuracy, f1_macro, loss are measured"),
    (["--metric-for-best-model", "eval_precision"], "'eval_precision', but accuracy, f1_macro, loss are measured"),
    (["--report-to", "wandb"], "--report-to wandb: WandbCallback requires wandb to be installed."),
    (["--optim", "galore_adamw", "--optim-target-modules", "query"], "--optim galore_adamw: You need to install"),
    (["--optim", "schedule_free_adamw"], "--optim schedule_free_adamw: You need to install `schedulefree`"),
    (["--optim", "grokadamw"], "--optim grokadamw: Please install"),
    (["--use-liger-kernel", "true"], "--use-liger-kernel needs a package that is not installed: pip install"),
    (
        ["--lr-scheduler-type", "warmup_stable_decay"],
        "warmup_stable_decay with no --lr-scheduler-kwargs: get_wsd",
    ),
    (["--lr-scheduler-type", "cosine_with_min_lr"], "One of min_lr or min_lr_rate should be set"),
    (["--lr-scheduler-kwargs", '{"foo": 1}'], "unexpected keyword argument 'foo'"),
    (["--lr-scheduler-kwargs", "nothing"], "--lr-scheduler-kwargs is 'nothing', but it must be JSON such as"),
    (["--lr-scheduler-kwargs", "{power: 1}"], "--lr-scheduler-kwargs is '{power: 1}', which is not JSON"),
    (["--per-device-train-batch-size", "0"], "--per-device-train-batch-size must be at least 1, got 0."),
    (["--per-device-eval-batch-size=-4"], "--per-device-eval-batch-size must be at least 1, got -4."),
    (["--gradient-accumulation-steps", "0"], "--gradient-accumulation-steps must be at least 1, got 0."),
    (["--learning-rate=-1"], "--learning-rate must be above 0, got -1.0."),
    (["--learning-rate=nan"], "--learning-rate must be above 0, got nan."),
    (["--learning-rate=inf"], "--learning-rate must be a finite number, got inf."),
    (["--num-train-epochs=-1"], "--num-train-epochs must be above 0, got -1.0."),
    (["--max-steps=0"], "--max-steps must be at least 1, got 0."),
    (["--max-steps=-2"], "--max-steps must be at least 1, got -2."),
    (["--eval-steps=-1"], "--eval-steps must be above 0, got -1.0."),
    (["--dataloader-num-workers=-1"], "--dataloader-num-workers must be 0 or more, got -1."),
    (["--eval-accumulation-steps=0"], "--eval-accumulation-steps must be at least 1, got 0."),
    (["--torch-compile-mode", "quick"], "--torch-compile-mode is 'quick': choose one of default,"),
    (["--optim-args", "x"], "--optim-args must be pairs such as rank=4,scale=0.25, got 'x'."),
    (["--label-names", "foo"], "--label-names foo: the models here read their labels as 'labels'; leave it out."),
    (["--prediction-loss-only", "true"], "--prediction-loss-only leaves no accuracy to report"),
    (["--seed=-1"], "--seed must be a whole number from 0 to 4294967295, got -1."),
    (["--adam-beta1=1"], "--adam-beta1 must be at least 0 and below 1, got 1.0."),
    (["--do-train", "false"], "--do-train false: this command always trains and measures; leave it out."),
    (["--save-strategy=best", "--eval-strategy=no"], "--save-strategy best needs evaluations, but --eval-strategy is"),
    (
        ["--eval-steps=4", "--save-steps=6", "--load-best-model-at-end=true"],
        "round multiple of the evaluation steps",
    ),
    (["--label-method=static_label"], "static_label needs --label-static-model"),
    (
        ["--label-method=no_such_module:Mine"],
        "label_method 'no_such_module:Mine': 'no_such_module' cannot",
    ),
    (["--embedding-dim=1"], "--embedding-dim: embedding_dim is '1', but label vectors need at least 2 dimensions."),
    (["--test-share=1"], "--test-share must be 0 for none, or between 0 and 1, got 1.0."),
    (["--test-share=0.1", "--test-data=x.csv"], "--test-share sets rows apart and --test-data names others"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_loaded(flags, message, tmp_path, capsys, monkeypatch):
    """An hour of tokenizing, or an epoch, before a word about a flag is an hour lost."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--data=there-is-none.csv", "--model=nor-this", "--use-cpu=true", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "there-is-none" not in error, "the data would be the next complaint"
    assert not list(tmp_path.iterdir()), "nothing is left behind"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"optim": "sgd", "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr": 1e-6}'},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": '{"num_decay_steps": 1}'},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "train_sampling_strategy": "group_by_length"},
        {"save_strategy": "best", "optim": "adafactor", "report_to": ["tensorboard"], "push_to_hub": True},
        {"label_smoothing_factor": 0.1, "torch_compile_mode": "reduce-overhead"},
        {"max_steps": -1, "save_total_limit": 0, "metric_for_best_model": "eval_loss", "label_names": ["labels"]},
    ],
)
def test_what_can_work_is_rehearsed_without_a_trace(given, tmp_path, monkeypatch):
    """A check that is stricter than the training would take settings away; one that leaves traces, repeatability."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    expected = torch.random.get_rng_state()
    check_given(given)
    values = training_values(given, from_scratch=False) | {"output_dir": "out", "use_cpu": True}
    arguments = build_arguments(values)
    torch.random.set_rng_state(expected)
    rehearse(arguments)
    assert torch.equal(torch.random.get_rng_state(), expected)
    assert arguments.output_dir == "out"
    assert arguments.push_to_hub == bool(given.get("push_to_hub")), "the real arguments are as they were"
    assert not list(tmp_path.iterdir())


def parsed(text, tmp_path):
    """Values that a file of settings gives."""
    (tmp_path / "settings.yaml").write_text(text, encoding="utf-8")
    parser = cli.build_parser("train")
    return vars(parser.parse_args(cli.with_config(parser, ["train", str(tmp_path / "settings.yaml"), "--data=x"])))


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("eval_strategy: no", "eval_strategy", "no"),
        ("save-strategy: No", "save_strategy", None),
        ("bf16: no", "bf16", False),
        ("bf16: off", "bf16", False),
        ("bf16: Yes", "bf16", True),
        ("control: on", "control", True),
        ("control: y", "control", True),
        ("control: off", "control", False),
        ("learning_rate: 1e-4", "learning_rate", 1e-4),
        ("max_steps: 012", "max_steps", 12),
        ("run_name: 2024-01-01", "run_name", "2024-01-01"),
        ("run_name: 12:30", "run_name", "12:30"),
        ("label_column: yes", "label_column", "yes"),
        ("label_column: 'null'", "label_column", "null"),
        ("label_column: null", "label_column", None),
        ("label_column: ~", "label_column", None),
        ("label_column: ", "label_column", None),
        ("lwal_offset: false", "lwal_offset", False),
        ("lwal_eval_refresh: no", "lwal_eval_refresh", "no"),
        ("report_to: none", "report_to", ["none"]),
        ("report_to: [tensorboard, mlflow]", "report_to", ["tensorboard", "mlflow"]),
    ],
)
def test_a_word_in_a_settings_file_is_what_it_says(line, name, value, tmp_path, capsys):
    """In YAML 1.1 ``no`` is false, ``1e-4`` a text and ``012`` ten: `eval_strategy: no` evaluated every epoch."""
    if name == "save_strategy":  # no such word there, and the message shows the one that was written
        with pytest.raises(SystemExit):
            parsed(line, tmp_path)
        assert "'No'" in capsys.readouterr().err
        return
    assert parsed(line, tmp_path).get(name) == value


def test_mappings_in_a_settings_file_keep_their_types(tmp_path):
    text = "lr_scheduler_kwargs: {min_lr: 1e-7, twice: 2, on: no, word: 'no', none: null, list: [1, x]}"
    expected = {"min_lr": 1e-7, "twice": 2, "on": False, "word": "no", "none": None, "list": [1, "x"]}
    assert json.loads(parsed(text, tmp_path)["lr_scheduler_kwargs"]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_steps: 3\nmax-steps: 4", "names 'max-steps' twice"),
        ("text", "but it holds a text."),
        ("", "but it holds nothing."),
        ("a: 1\n---\nb: 2", "could not be read: "),
        ("report_to: [[a]]", "must hold words in the list of 'report_to'"),
        ("a: &a [*a]", "must hold words in the list of 'a'"),
    ],
)
def test_a_settings_file_that_is_none_is_refused(text, message, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        read_settings(path)


@pytest.mark.parametrize("line", ["control: maybe", "bf16: 2", "max_steps: 1e3", "eval_strategy: off"])
def test_a_word_that_a_flag_does_not_know_is_refused(line, tmp_path, capsys):
    with pytest.raises((SystemExit, ArgumentTypeError)):
        parsed(line, tmp_path)
    assert repr(line.split()[1]).strip("'") in capsys.readouterr().err


def test_no_file_tells_where_a_user_keeps_things(tmp_path, monkeypatch):
    """The settings are pushed with the model; from the same folder they must still lead to the same places."""
    home, work = tmp_path / "home" / "ann", tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    assert portable(str(work / "data" / "rows.csv")) == "data/rows.csv"
    assert portable(str(home / "rows.csv")) == "~/rows.csv"
    assert portable(str(tmp_path / "rows.csv")) == "../rows.csv"
    assert portable("owner/name:part") == "owner/name:part"


def test_the_best_checkpoint_is_kept_where_the_best_is_saved():
    """Saving the best and then keeping the last is not what was asked for."""
    values = training_values({"save_strategy": "best", "eval_steps": 2}, from_scratch=False)
    chosen = {name: values[name] for name in ("load_best_model_at_end", "metric_for_best_model", "eval_strategy")}
    assert chosen == {"load_best_model_at_end": True, "metric_for_best_model": "accuracy", "eval_strategy": "steps"}
    asked = {"save_strategy": "best", "load_best_model_at_end": False, "metric_for_best_model": "f1_macro"}
    values = training_values(asked, from_scratch=False)
    assert values["load_best_model_at_end"] is False, "what was asked for stays"
    assert values["metric_for_best_model"] == "f1_macro"


def test_the_checks_read_every_number_as_a_number():
    with pytest.raises(CommandError, match=r"--weight-decay must be 0 or more, got -0\.1"):
        check_given({"weight_decay": -0.1})
    check_given({"weight_decay": 0.0, "eval_steps": 0.25, "warmup_steps": 0.1, "adam_epsilon": 0.0, "seed": 2**32 - 1})
