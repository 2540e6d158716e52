"""The documentation says what is true: names that exist, settings as they are, links that lead somewhere."""

import ast
import dataclasses
import re
import shlex
import subprocess
import sys
from functools import lru_cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from trajectory import arguments, build, rows_for

import hf_lwal
from hf_lwal import LwALConfig, LwALTrainer, LwALTrainingArguments
from hf_lwal.bench.grid import load_grids
from hf_lwal.cli.main import build_parser
from hf_lwal.modeling.label_tracking import TRAINER_FOLLOWS
from hf_lwal.objectives import build_objective
from hf_lwal.settings.presets import PRESETS, preset
from hf_lwal.settings.training_args import CONFIG_FIELDS

PROJECT = Path(__file__).parents[1]
DOCS = PROJECT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
PUBLIC_MODULES = [
    *("modeling.functional", "objectives.Objective", "metrics", "hierarchy", "plots"),
    *("modeling.open_set", "modeling.calibration", "modeling.label_editing", "modeling.export"),
]


def text_of(page):
    return (DOCS / page).read_text(encoding="utf-8")


def named(dotted):
    """The object that a dotted name stands for: the longest module in it, then attributes."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


def in_code(text):
    """``file.py: name`` in ``text`` as dotted names."""
    spans = re.findall(r"`([\w/]+)\.py: ([\w.]+)`", text)
    return ["hf_lwal." + file.replace("/", ".") + "." + name for file, name in spans]


def section(page, heading):
    return re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", text_of(page), re.MULTILINE | re.DOTALL).group(1)


def table_rows(text):
    """Cells of the table rows in ``text``, without header and rule."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return rows[2:]


# -- the paper, line by line ----------------------------------------------------------------------------------------


def test_what_the_paper_page_names_exists():
    names = in_code(text_of("paper_to_code.md"))
    assert len(names) > 60
    for name in names:
        defined_in = getattr(named(name), "__module__", None)  # values have none
        assert defined_in is None or name.startswith(f"{defined_in}."), f"{name} is only imported there"


def test_a_name_in_the_wrong_notation_is_not_passed_over():
    """A file named otherwise than ``file.py: name`` would be checked by nothing."""
    text = text_of("paper_to_code.md")
    files = re.findall(r"[\w/]+\.py(?!\w)", re.sub(r"`tests/\w+\.py`", "", text))
    assert len(files) == len(in_code(text))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_equation_has_its_functions(number):
    rows = {row[0]: row[-1] for row in table_rows(section("paper_to_code.md", "Equations"))}
    names = in_code(rows[f"Eq. ({number})"])
    cited = " ".join(line for name in names for line in re.findall(r"Eq\. .*", named(name).__doc__))
    assert f"({number})" in cited, "the docstring of one of them cites the equation"


def test_training_computes_the_equations_with_these_functions(tmp_path):
    """A function that is documented, tested and called by nothing tells of another program."""
    rows = {row[0]: row[-1] for row in table_rows(section("paper_to_code.md", "Equations"))}
    names = [name for number in range(1, 5) for name in in_code(rows[f"Eq. ({number})"])]
    functions = {name: named(name).__code__ for name in names}
    args = arguments(tmp_path, "paper, repel 10", max_steps=1, per_device_train_batch_size=16)
    trainer = LwALTrainer(build("bert"), args, train_dataset=rows_for("bert", 32))
    called = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code) if event == "call" else None)
    try:
        trainer.train()
    finally:
        sys.setprofile(None)
    assert [name for name, code in functions.items() if code not in called] == []


def test_the_presets_are_the_methods_that_the_page_says(tmp_path):
    said = {}
    for names, _, code in table_rows(section("paper_to_code.md", "Methods that the paper compares")):
        said |= dict.fromkeys(re.findall(r"`(paper:[^`]+)`", names), named(in_code(code)[0]))
    assert set(said) == {name for name in PRESETS if name.startswith("paper:")}
    for name, objective in said.items():
        settings = LwALTrainingArguments(str(tmp_path), lwal_preset=name).resolve_lwal()
        assert type(build_objective(settings)) is objective


def test_what_the_default_preset_changes_is_what_the_page_says():
    fields, paper = LwALConfig.__dataclass_fields__, {**preset("paper"), **preset("default")}
    changed = {
        name: tuple(str(preset(one).get(name, fields[name].default)) for one in ("default", "paper"))
        for name in paper.keys() & fields.keys() - {"embedding_dim"}
    }
    changed = {name: values for name, values in changed.items() if values[0] != values[1]}
    rows = table_rows(section("paper_to_code.md", "What the default preset changes"))
    assert {row[0].strip("`"): (row[1].strip("`"), row[2].strip("`")) for row in rows} == changed


@pytest.mark.parametrize("name", CONFIG_FIELDS)
def test_help_states_what_the_presets_set(name):
    """A default that was changed in one place only would be told wrongly in the other."""

    def said(value):
        return str(value).lower() if isinstance(value, (bool, str)) else f"{value:g}"

    default, paper = (preset(one).get(name, getattr(LwALConfig, name)) for one in ("default", "paper"))
    default = TRAINER_FOLLOWS if name == "follow_drift" else default
    help_text = LwALTrainingArguments.__dataclass_fields__[f"lwal_{name}"].metadata["help"]
    assert f"default {said(default)}, paper {said(paper)}" in help_text


def test_the_commands_of_the_paper_page_cover_its_experiments():
    commands = re.findall(r"`(hf-lwal [^`]+)`", section("paper_to_code.md", "Experiments"))
    parsed = [build_parser().parse_args(shlex.split(command)[1:]) for command in commands]
    runs = [options for options in parsed if options.command == "compare"]
    pairs = {(dataset, model) for run in runs for dataset in run.dataset for model in run.model}
    grids = load_grids("paper")
    assert pairs == {(dataset, model) for grid in grids for dataset in grid.datasets for model in grid.models}
    assert {options.command for options in parsed} == {"compare", "report", "hierarchy"}


# -- reference and navigation ---------------------------------------------------------------------------------------


def documented():
    """What the reference pages generate from docstrings."""
    return {name for page in PAGES for name in re.findall(r"^::: ([\w.]+)$", text_of(page), re.MULTILINE)}


def test_every_public_name_has_its_place_in_the_reference():
    wanted = [*hf_lwal.__all__, *PUBLIC_MODULES]
    assert {f"hf_lwal.{name}" for name in wanted} <= documented()


def test_what_the_reference_shows_exists_and_says_what_it_is():
    for name in documented():
        assert named(name).__doc__, f"{name} has no docstring"


def nav_pages(entries):
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from nav_pages(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation():
    site = yaml.safe_load((PROJECT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(nav_pages(site["nav"])) == PAGES, "give the page its place in the nav of mkdocs.yml"


def test_the_first_page_of_the_site_shows_what_readme_shows():
    """README's example is run by a test; another copy of it would rot."""
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```(?:python|diff)\n.*?^```$", readme, re.MULTILINE | re.DOTALL)[:2]
    assert [block.partition("\n")[0] for block in shown] == ["```python", "```diff"]
    assert all(block in text_of("index.md") for block in shown)


def links(path):
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    inline = [child for token in tokens for child in token.children or []]
    return [token.attrGet("href") or token.attrGet("src") for token in inline if token.type in ("link_open", "image")]


@pytest.mark.parametrize("page", [f"docs/{page}" for page in PAGES] + ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    path = PROJECT / page
    for link in links(path):
        if "://" not in link and not link.startswith("#"):
            target = path.parent / link.partition("#")[0]
            assert target.exists(), f"{page} links to {link}"
            assert DOCS not in path.parents or DOCS in target.resolve().parents, f"{link} is outside of the site"


# -- the site -------------------------------------------------------------------------------------------------------


class Loads(HTMLParser):
    """Collects what a browser fetches when it shows a page, and the anchors of the page."""

    def __init__(self):
        super().__init__()
        self.fetched, self.anchors = [], set()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors.add(attrs.get("id"))
        if tag in ("script", "img", "iframe"):
            self.fetched.append(attrs.get("src"))
        if tag == "link" and attrs.get("rel") in ("stylesheet", "icon", "preconnect", "preload"):
            self.fetched.append(attrs.get("href"))


def test_the_site_builds_without_a_warning_and_fetches_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    anchors = set()
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)  # and the page for addresses that do not exist
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert [source for source in loads.fetched if source and re.match(r"(https?:)?//", source)] == []
        anchors |= loads.anchors
    assert {f"hf_lwal.{name}" for name in hf_lwal.__all__} <= anchors
    assert "hf_lwal.LwALTrainingArguments.lwal_memory" in anchors  # fields are documented by their help texts


# -- messages -------------------------------------------------------------------------------------------------------


def sentences_of_the_package():
    """Every text in the source, with … for each value that is put in."""
    for path in sorted((PROJECT / "src" / "hf_lwal").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%(\.\d)?[sdrg]", "…", node.value)


def quoted_messages():
    """What the page on messages quotes in bold, each message once."""
    found = re.findall(r"\*\*\"(.+?)\"\*\*", " ".join(text_of("messages.md").split()))
    return [message for message in found if "`lwal`" not in message]  # that one is transformers'


def test_the_messages_that_the_page_explains_are_those_of_the_package():
    """Nobody finds an explanation by the words of a message that has other words now."""
    said = [" ".join(text.split()) for text in sentences_of_the_package()]
    messages = quoted_messages()
    assert len(messages) > 25
    for message in messages:
        parts = [part.strip(" .:,") for part in message.split("…")]
        parts = [part for part in parts if len(part) > 1]
        assert any(all(part in text for part in parts) for text in said), message


# -- figures --------------------------------------------------------------------------------------------------------

FIGURE = re.compile(r"[^\w`]*\d[\d,]*\.\d[\d.,\s±/→()%*+−–\-¹²³]*")
"""A cell that is a measured number: an accuracy, a pair of them, with a deviation or a change."""


def sections(text):
    """Per heading, and for what stands before the first: cells of the tables, and the code, up to the next heading."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    found, in_body = [("", [], [])], False
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            found.append((tokens[place + 1].content, [], []))
        in_body = (in_body or token.type == "tbody_open") and token.type != "tbody_close"
        _, cells, code = found[-1]
        if token.type == "inline" and in_body:
            cells.append(token.content)
        if token.type in ("fence", "code_block"):
            code.append(token.content)
        code += [f"`{child.content}" for child in token.children or [] if child.type == "code_inline"]
    return found


def figures_without_a_command(text):
    """Headings of sections whose tables hold measured numbers, and which say nothing of how to measure them."""
    return [
        heading
        for heading, cells, code in sections(text)
        if sum(FIGURE.fullmatch(cell) is not None for cell in cells) > 2
        and not any(
            not part.startswith("`") or re.match(r"`(hf-lwal |python |benchmarks/|\.ci/)", part) for part in code
        )
    ]


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}" for page in PAGES)])
def test_every_table_of_figures_stands_beside_a_command(page):
    """A number that nobody can measure again is a claim; the command that made it stands in the same section."""
    assert figures_without_a_command((PROJECT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# A\n\n|a|b|\n|-|-|\n|x|1.5|\n|y|**2.5** ± 0.1|\n|z|1.0 → 2.0|\n", ["A"]),
        ("# A\n\n    hf-lwal report\n\n# B\n\n|a|b|\n|-|-|\n|x|1.5|\n|y|2.5|\n|z|3.5|\n", ["B"]),
        ("# A\n\n`hf-lwal report`\n\n|a|b|\n|-|-|\n|x|1.5|\n|y|2.5|\n|z|3.5|\n", []),
        ("# A\n\n`lwal_scale`\n\n|a|b|\n|-|-|\n|x|1.5|\n|y|2.5|\n|z|3.5|\n", ["A"]),
        ("# A\n\n|a|b|\n|-|-|\n|x|0.5 by default|\n|y|from 2.6|\n|z|`0.3`|\n", []),
    ],
)
def test_the_rule_for_tables_finds_what_it_should(text, found):
    """A pattern that matches no cell would let every table pass."""
    assert figures_without_a_command(text) == found


# -- commands -------------------------------------------------------------------------------------------------------


def commands_of(text):
    """Command lines of this project in the code of a page, each on one line, without what a shell does with them."""
    code = "\n".join(part.removeprefix("`") for _, _, parts in sections(text) for part in parts)
    lines = re.sub(r"\\\n\s*", " ", code).splitlines()
    for line in lines:
        for command in re.split(r" && | \| |; ", line.partition("  #")[0].partition(" > ")[0]):
            if re.match(r"\s*(hf-lwal|python (benchmarks|examples)/\S+) \S", command) and "…" not in command:
                yield command.strip()


@lru_cache
def flags_of(name):
    """Flags that a command of hf-lwal, or a script of the project, takes."""
    if name.endswith(".py"):
        script = PROJECT / name
        if not script.exists():
            return None
        text = script.read_text(encoding="utf-8")
        beside = (script.with_name(f"{other}.py") for other in re.findall(r"^from (\w+) import", text, re.MULTILINE))
        text += "".join(path.read_text(encoding="utf-8") for path in beside if path.exists())
        fields = dataclasses.fields(LwALTrainingArguments) if "HfArgumentParser" in text else ()
        return {*re.findall(r'"(--[\w-]+)"', text), *(f"--{field.name}" for field in fields)}
    parser = build_parser(name)
    (commands,) = (action.choices for action in parser._actions if action.dest == "command")
    return set(commands[name]._option_string_actions) if name in commands else None


def fault_of(command):
    """What is wrong with a command, or None."""
    _, name, *words = shlex.split(command)
    known = {"--help", "--version"} if name.startswith("-") or name.isupper() else flags_of(name)
    if known is None:
        return f"there is no {name}"
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"{', '.join(unknown)} unknown" if unknown else None


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}" for page in PAGES)])
def test_the_commands_of_a_page_are_commands(page):
    """A flag that was renamed leaves commands behind that nobody can run, beside figures that nobody can check."""
    found = {command: fault_of(command) for command in commands_of((PROJECT / page).read_text(encoding="utf-8"))}
    assert {command: fault for command, fault in found.items() if fault} == {}


def test_commands_are_found_and_read():
    block = "cat x | hf-lwal predict m - --jsn\npython benchmarks/open_set.py --data-root D \\\n  --nothing\n"
    found = list(commands_of(f"```bash\n{block}```\n`hf-lwal fly x`, `python benchmarks/gone.py x`"))
    assert found == [
        *("hf-lwal predict m - --jsn", "python benchmarks/open_set.py --data-root D  --nothing"),
        *("hf-lwal fly x", "python benchmarks/gone.py x"),
    ]
    assert all(map(fault_of, found))
    assert fault_of("hf-lwal predict m - --json") is None
