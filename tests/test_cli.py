"""The command line: flags come from the options, mistakes are one sentence with exit code 2."""

import logging
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, field, fields
from importlib.metadata import EntryPoint
from typing import Literal

import pytest
from test_modeling import build
from test_versions import PYPROJECT
from tqdm.auto import tqdm

from hf_lwal import LwALTrainingArguments
from hf_lwal.cli import main as cli
from hf_lwal.cli import verbosity
from hf_lwal.cli.flags import Parser, add_options, argument, option
from hf_lwal.errors import CommandError

HEAVY = ("torch", "transformers", "datasets", "scipy", "pyarrow")
SCRIPT = """
import sys
from importlib import import_module
entry, *sys.argv[1:] = sys.argv[1:]
module, _, name = entry.partition(":")
try:
    sys.exit(getattr(import_module(module), name)())
finally:
    print("imported:", *sys.modules, file=sys.stderr)
"""


def as_a_user(*words):
    """Run what the console script runs; returns the process and the modules that it imported."""
    entry = EntryPoint("hf-lwal", PYPROJECT["scripts"]["hf-lwal"], "console_scripts")
    command = [sys.executable, "-c", SCRIPT, entry.value, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, done.stderr.rpartition("imported:")[2].split()


@dataclass(frozen=True)
class Options:
    """Does a thing."""

    name: str | None = field(default=None, metadata={"help": "a name"})
    rate: float = field(default=0.5, metadata={"help": "50 % by default"})
    steps: int = field(default=3, metadata={"help": "how many"})


@pytest.fixture
def command(monkeypatch):
    """Register a command "thing" and return the list of options it was called with."""
    calls = []

    def run(options):
        calls.append(options)
        if options.steps < 0:
            raise CommandError(f"--steps must not be negative, got {options.steps}.")
        if options.steps == 0:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setitem(cli.COMMANDS, "thing", (Options, run))
    return calls


def test_flags_come_from_the_options(command):
    assert cli.main(["thing"]) == 0
    assert cli.main(["thing", "--name", "x", "--rate", "1e-3", "--steps", "7"]) == 0
    assert command == [Options(), Options("x", 1e-3, 7)]


def test_help_states_defaults(command, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["thing", "--help"])
    assert exit_info.value.code == 0
    output = capsys.readouterr().out
    assert "Does a thing." in output
    assert "50 % by default (default: 0.5)" in " ".join(output.split())


def test_a_users_mistake_is_one_sentence_and_code_2(command, capsys):
    assert cli.main(["thing", "--steps", "-1"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "hf-lwal thing: --steps must not be negative, got -1.\n"
    assert captured.out == ""


def test_an_interruption_shows_no_traceback(command, capsys):
    assert cli.main(["thing", "--steps", "0"]) == 130
    assert capsys.readouterr().err == "hf-lwal thing: interrupted.\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["quickstart", "--steps", "many"], "argument --steps: invalid int value: 'many'"),
        (["quickstart", "--pace", "1"], "unrecognized arguments: --pace 1"),
    ],
)
def test_unknown_words_exit_with_code_2(argv, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(argv)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_every_command_has_a_summary_and_every_flag_a_help_text():
    for options, _ in cli.COMMANDS.values():
        assert options.__doc__
        assert all(entry.metadata["help"] for entry in fields(options))


@pytest.mark.slow
def test_it_runs_as_a_program():
    """The console script and ``python -m`` share one entry; the module must not need anything but its name."""
    done = subprocess.run(
        [sys.executable, "-m", "hf_lwal", "quickstart", "--steps", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == "hf-lwal quickstart: --steps must be above 0, got 0."
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], *([name] for name in cli.COMMANDS if name not in cli.MORE_FLAGS)])
def test_help_imports_nothing_heavy(words):
    """One import at the top of a command makes every help text, of all commands, wait for seconds."""
    done, imported = as_a_user(*words, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: hf-lwal {' '.join(words)}".strip())
    assert "hf_lwal.cli.main" in imported, "the list must be the real one"
    assert [name for name in HEAVY if name in imported] == []


def test_a_command_knows_the_models_that_its_help_did_without(tiny_config, tokenizer, tmp_path):
    """The package is imported without acquainting transformers with them, which must be made up for."""
    model = build(tiny_config, "bert")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    done, imported = as_a_user("predict", str(tmp_path), "word1 key2 key2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" 0.")[0] in model.config.label2id
    assert "hf_lwal.modeling.auto" in imported


@pytest.mark.parametrize("name", [None, *cli.COMMANDS])
def test_help_reads_well_at_80_columns(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_info:
        cli.main([name, "--help"] if name else ["--help"])
    assert exit_info.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.lstrip().startswith("--") and "_" in line.split()[0]], "one spelling"
    if name is None:
        shown = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
        assert shown[2:] == list(cli.COMMANDS), "every command on a line with its summary"


def help_of(flag, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", flag])
    return capsys.readouterr().out


def test_training_flags_are_grouped_and_the_many_are_hidden(monkeypatch, capsys):
    """A hundred flags of transformers would bury the ten that matter."""
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = help_of("--help", capsys), help_of("--help-all", capsys)
    order = [short.index(title) for title in ("\noptions:", "\nadaptive labels:", "\ntraining:")]
    assert order == sorted(order)
    assert short.index("--data ") < short.index("--lwal-memory") < short.index("--learning-rate")
    assert "--ddp-backend" not in short
    missing = [
        entry.name for entry in fields(LwALTrainingArguments) if f"--{entry.name.replace('_', '-')} " not in whole
    ]
    assert missing == []
    words = " ".join(short.split())
    assert "batch size per device for training. (default: 32)" in words, "the command's own default"


def test_a_settings_file_may_also_be_named_by_a_flag(tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("data: rows.csv\nmax_steps: 3\nbf16: false\n", encoding="utf-8")
    parser = cli.build_parser("train")
    expected = ["train", "--data=rows.csv", "--max-steps=3", "--bf16=False", "--seed", "1"]
    for words in (
        [str(file), "--seed", "1"],
        ["--config", str(file), "--seed", "1"],
        ["--seed", "1", "--config", str(file)],
    ):
        assert cli.with_config(parser, ["train", *words]) == expected
    for words in (["rows.csv", "--max-steps=3"], ["--data=rows.csv", "--max-steps=3"]):
        assert cli.with_config(parser, ["train", *words]) == ["train", "--data=rows.csv", "--max-steps=3"]
    words = ["train", "rows.csv", "--dataset", "others.csv"]
    assert cli.with_config(parser, words) == words, "which of the two is for the command to ask"
    assert cli.with_config(parser, ["train", "--config"]) == ["train", "--config"], "the parser says what is missing"


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["trian"], "invalid choice: 'trian': did you mean train?"),
        (["quickstart", "--step", "3"], "did you mean --steps?"),
        (["quickstart", "--learning_rates=3"], "did you mean --learning-rate?"),
        (["train", "--data=clinc150", "--lwal-memmory=3"], "did you mean --lwal-memory?"),
        (["completion", "bsh"], "invalid choice: 'bsh': did you mean bash?"),
        (["completion", "fish"], "choose from bash, zsh, tcsh"),
    ],
)
def test_misspelt_words_get_a_suggestion(argv, hint, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(argv)
    assert exit_info.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_errors_are_red_on_a_terminal_only(terminal, variables, coloured, command, monkeypatch, capsys):
    """Escape codes in a log file or against NO_COLOR are noise."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert cli.main(["thing", "--steps", "-1"]) == 2
    error = capsys.readouterr().err
    assert "--steps must not be negative, got -1." in error
    assert ("\033[31m" in error) == coloured


@dataclass(frozen=True)
class Everything:
    """All kinds of options."""

    first: str = argument("a word")
    needed: int = argument("a flag that must be given", positional=False)
    many: list[str] = option([], "words", positional=True)
    numbers: list[int] | None = option(None, "numbers")
    kind: Literal["a", "b"] = option("a", "one of two")
    on: bool = option(True, "on by default")
    off: bool = option(False, "off by default")
    inside: int = field(default=7, metadata={"help": "not a flag", "flag": False})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x", "--needed=1"], Everything("x", 1)),
        (["x", "y", "z", "--needed", "1"], Everything("x", 1, ["y", "z"])),
        (["x", "--needed", "1", "y", "z"], Everything("x", 1, ["y", "z"])),
        (["--needed=1", "x", "y", "--off", "z"], Everything("x", 1, ["y", "z"], off=True)),
        (["x", "--needed=1", "--numbers", "3", "4", "--no-on"], Everything("x", 1, numbers=[3, 4], on=False)),
        (["x", "--needed=1", "--kind=b"], Everything("x", 1, kind="b")),
    ],
)
def test_every_kind_of_option_becomes_a_flag(words, expected):
    parser = Parser(prog="p")
    add_options(parser, Everything)
    assert Everything(**vars(parser.parse_args(words))) == expected


def test_lists_are_not_shared_between_instances():
    Everything("x", 1).many.append("y")
    assert Everything("x", 1).many == []


@pytest.mark.parametrize(
    "words", [["x"], ["--needed=1"], ["x", "--needed=1", "--kind=c"], ["x", "--needed=1", "--inside=3"]]
)
def test_options_that_are_missing_or_not_flags_are_refused(words):
    parser = Parser(prog="p")
    add_options(parser, Everything)
    with pytest.raises(SystemExit):
        parser.parse_args(words)


def test_the_completion_script_completes_in_bash(tmp_path, capsys):
    """The shell itself is asked, since a script can be printed and complete nothing."""
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out, encoding="utf-8")
    ask = (
        'source "$1"; COMP_WORDS=(hf-lwal $2 "$3"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); '
        '$(complete -p hf-lwal | sed "s/.*-F \\([^ ]*\\).*/\\1/"); printf "%s\\n" "${COMPREPLY[@]}"'
    )

    def answers(before, word):
        done = subprocess.run(
            ["bash", "-c", ask, "bash", script, before, word], capture_output=True, text=True, check=True
        )
        return set(done.stdout.split())

    assert answers("", "tra") == {"train"}
    assert answers("train", "--lwal-mem") == {"--lwal-memory"}
    assert "--learning-rate" in answers("train", "--learn")
    assert {"lwal", "one_hot"} <= answers("train --label-method", "")
    assert answers("train --bf16", "") == {"true", "false"}
    assert answers("train --lwal-preset", "paper:lwal1") == {"paper:lwal10", "paper:lwal10+rpl"}
    assert "default" in answers("compare --method", "def")


def test_doctor_makes_no_network_call_when_offline(monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise AssertionError("a network call")

    monkeypatch.setattr("huggingface_hub.get_session", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert cli.main(["doctor"]) == 0
    assert "offline: HF_HUB_OFFLINE is set" in capsys.readouterr().out
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert cli.main(["doctor"]) == 0
    assert "cannot be reached (AssertionError): models and data must be local" in capsys.readouterr().out


def test_doctor_finds_what_is_missing(monkeypatch, capsys):
    stated = ["numpy>=1.0", "torch>=99", "nothing-here>=2", 'shtab>=1; extra == "completion"', 'gone; extra == "onnx"']
    monkeypatch.setattr("hf_lwal.cli.doctor.requires", lambda name: stated)
    assert cli.main(["doctor", "--offline"]) == 1
    output = capsys.readouterr().out
    assert 'Put it right with: pip install "torch>=99"' in output
    assert 'Put it right with: pip install "nothing-here>=2"' in output
    assert "nothing-here: missing, needs >=2" in output
    assert "completion: there" in output
    assert 'onnx: gone missing; pip install "hf-lwal[onnx]"' in output
    assert "not asked (--offline)" in output or "HF_HUB_OFFLINE is set" in output


def test_doctor_says_what_cannot_be_imported(monkeypatch, capsys):
    """It is asked when nothing works; the traceback of an import is what people have already."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert cli.main(["doctor", "--offline"]) == 1
    output = capsys.readouterr().out
    assert "torch: broken (ModuleNotFoundError)" in output
    assert "hf_lwal.modeling.auto: works" in output
    assert "unknown, since torch cannot be imported" in output
    assert "torch cannot be imported: ModuleNotFoundError: import of torch halted" in output.splitlines()[-2]


@pytest.mark.slow
def test_a_closed_pipe_is_no_error():
    """``hf-lwal completion bash | head -1`` must not end in a traceback."""
    command = f"{sys.executable} -m hf_lwal.cli.main completion bash | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert done.stdout.count("\n") == 1


def test_every_flag_of_every_command_takes_hyphens_and_underscores():
    """Launchers and other libraries write the one or the other; of a no only the hyphens were taken."""
    parser = cli.build_parser(*cli.MORE_FLAGS)
    (commands,) = (action.choices for action in parser._actions if action.dest == "command")
    checked = 0
    for command in commands.values():
        known = command._option_string_actions
        for flag, action in list(known.items()):
            for other in (f"--{flag[2:].replace('-', '_')}", f"--{flag[2:].replace('_', '-')}"):
                assert flag == "-h" or known.get(parser._negated(other)) is action, other
                checked += 1
    assert checked > 500
    assert cli.build_parser().parse_args(["report", "r.jsonl", "--no_curves"]).curves is False
    assert cli.build_parser().parse_args(["predict", "m", "--", "--no_curves"]).inputs == ["--no_curves"]


@pytest.fixture
def talkative(monkeypatch):
    """Register a command that says everything that a command can say."""

    def run(options):
        verbosity.note("A note.")
        logging.getLogger("hf_lwal.test").info("A detail.")
        logging.getLogger("hf_lwal.test").warning("A warning.")
        warnings.warn("Another warning.", stacklevel=1)
        for _ in tqdm([1], desc="A bar"):
            print("A result.")
        if options.steps < 0:
            raise CommandError("A mistake.")
        return 0

    monkeypatch.setitem(cli.COMMANDS, "talk", (Options, run))


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--quiet", []),
        (None, ["A note.", "A warning.", "Another warning.", "A bar"]),
        ("--verbose", ["A note.", "A warning.", "Another warning.", "A bar", "A detail."]),
    ],
)
def test_quiet_and_verbose_choose_what_is_said_beside_results_and_errors(flag, said, talkative, capsys):
    """A script that asks for quiet must still get every result and every error, and the next command its notes."""
    state = logging.root.manager.disable, logging.getLogger("hf_lwal").level, tqdm.__init__, dict(os.environ)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger("hf_lwal.test").addHandler(handler)
        try:
            assert cli.main(["talk", *filter(None, [flag]), "--steps=-1"]) == 2
        finally:
            logging.getLogger("hf_lwal.test").removeHandler(handler)
    captured = capsys.readouterr()
    everything = f"{captured.out}{captured.err}{[str(one.message) for one in warned]}"
    assert "A result." in captured.out
    assert "A mistake." in captured.err
    assert [
        one for one in ("A note.", "A warning.", "Another warning.", "A bar", "A detail.") if one in everything
    ] == said
    assert state == (
        *(logging.root.manager.disable, logging.getLogger("hf_lwal").level, tqdm.__init__),
        dict(os.environ),
    )


def test_quiet_and_verbose_are_not_both_possible(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["doctor", "--quiet", "--verbose"])
    assert "--verbose: not allowed with argument --quiet" in capsys.readouterr().err
