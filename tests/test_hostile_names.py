"""No name becomes markup, leaves its folder, moves the cursor or runs: cards, reports, tables, pictures, terminals."""

import csv
import io
import json
import re
import unicodedata
from html.parser import HTMLParser

import pytest
import torch
from hostile import HOSTILE, MEANT
from test_benchmark_report import LINES
from test_model_card import MARKDOWN, facts_named, metadata, structure
from tiny_models import tiny_config
from toy import word_tokenizer

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.bench.report import csv_text, in_latex, latex, markdown
from hf_lwal.bench.summary import tables
from hf_lwal.cli import main as cli
from hf_lwal.cli.audit_report import Audit, Judged, as_csv, as_html
from hf_lwal.cli.predict_answers import as_text
from hf_lwal.model_card import render

ESPECIALLY = ["\ud800", "\x1b[31mred", "\u202eevil", "a\rb", "../../x", "$x", "<b>"]
BAD = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def bad_characters(text):
    """What moves a cursor, hides letters or turns the direction of reading."""
    return {char for char in text if unicodedata.category(char) in BAD and char not in "\n\t\u200c\u200d"}


def test_a_card_has_the_same_structure_whatever_the_names():
    expected, keys = structure(render(facts_named(["Plain (name)"]))), set(metadata(render(facts_named(["a"]))))
    for start in range(0, len(HOSTILE), 8):
        name = HOSTILE[start : start + 17]
        text = render(facts_named(name))
        found = structure(text)
        place = found.index("heading_open") + 1
        if found[place + 1 : place + 2] == [("code_inline", None)]:
            found.pop(place + 1)
        assert found == expected, name
        assert set(metadata(text)) == keys, name
        assert not bad_characters(text), name


class Tags(HTMLParser):
    """The elements of a page with the names of their attributes, and its texts."""

    def __init__(self, page) -> None:
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, *sorted(name for name, _ in attrs)))

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")

    def handle_comment(self, data):
        self.tags.append("comment")

    handle_decl = handle_pi = unknown_decl = handle_comment

    def handle_data(self, data):
        self.texts.append(data)


def audit_of(names):
    rows = [
        Judged(row, name, names[(row + 1) % len(names)], -1.0 + 0.01 * row, row < 5, name)
        for row, name in enumerate(names)
    ]
    return Audit(names[0], names, rows, 0.1, "text")


def test_an_audit_has_the_same_elements_whatever_the_names():
    plain = Tags(as_html(audit_of([f"name {number}" for number in range(len(HOSTILE))]), len(HOSTILE)))
    page = as_html(audit_of(HOSTILE), len(HOSTILE))
    found = Tags(page)
    assert found.tags == plain.tags
    assert not bad_characters(page)
    joined = "".join(found.texts)
    for name in ("<script>alert(1)</script>", "\u0645\u06cc\u200c\u062e", "\U0001f469\u200d\U0001f680", "&lt;b&gt;"):
        assert name in joined, "what harms nobody stays as it is"


def test_an_audit_as_csv_gives_every_name_back():
    rows = list(csv.reader(io.StringIO(as_csv(audit_of(MEANT), 0), newline="")))
    assert all(len(row) == 7 for row in rows)
    assert [row[1] for row in rows[1:]] == MEANT


@pytest.mark.parametrize("place", ["method", "dataset", "model", "device"])
def test_a_report_has_the_same_structure_whatever_the_names(place):
    """A method called `|` moved the columns, one called `<script>` ran on the page, and LaTeX ran its commands."""

    def pages(names):
        lines = []
        for name in names:
            line = json.loads(json.dumps(LINES[0]))
            if place == "method":
                line["settings"]["method"]["name"] = name
            elif place == "device":
                line["machine"] = {"device": name}
                line["settings"]["dataset"] = f"set {len(lines)}"
            else:
                line["settings"][place] = name
            lines.append({**line, "key": str(len(lines))})
        found = tables(lines, {})
        return markdown(found, {}), latex(found), csv_text(found)

    def kinds(text):
        tokens = [part for token in MARKDOWN.parse(text) for part in (token, *(token.children or []))]
        return [token.type for token in tokens if token.type not in ("text", "code_inline")]

    names = HOSTILE if place == "method" else HOSTILE[::4]  # of these each has a table of its own
    plain, plain_latex, _ = pages([f"plain{number}" for number in range(len(names))])
    found, tex, table = pages(names)
    assert kinds(found) == kinds(plain)
    commands = re.compile(r"\\\\|\\[a-z]+|(?<!\\)[{}&$#~^%]")
    allowed = set(commands.findall(plain_latex)) | {"\\textbackslash", "\\textasciitilde", "\\textasciicircum"}
    assert set(commands.findall(tex)) <= allowed
    assert tex.count("\n") == plain_latex.count("\n")
    assert len({len(row) for row in csv.reader(io.StringIO(table, newline=""))}) == 1


def test_latex_prints_every_character():
    for name in HOSTILE:
        bare = re.sub(r"\\text(backslash|asciitilde|asciicircum)\{\}|\\[{}&%$#_]|\$\\(pm|times)\$", "", in_latex(name))
        assert not set(bare) & set("\\{}&%$#~^_"), name


def test_answers_are_one_line_without_commands_to_the_terminal():
    """A label of a downloaded model could rename the window, or hide the line above."""
    for name in HOSTILE:
        line = as_text(name, [{"label": name, "score": 0.5}, {"label": "b", "score": 0.25}])
        assert not bad_characters(line)
        assert len(line.splitlines()) == 1
        assert line.count("\t") == 1


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A saved model whose labels have hostile names."""
    folder = tmp_path_factory.mktemp("hostile") / "model"
    names = dict(enumerate([*(name for name in MEANT[::5] if name.strip()), *ESPECIALLY]))
    torch.manual_seed(0)
    model = AutoModelForLwALClassification.from_config(
        tiny_config("bert", id2label=names, label2id={name: index for index, name in names.items()})
    )
    table = model.label_table
    rows = torch.arange(len(names) * 2)
    table.start(torch.randn(len(rows), table.class_features.shape[1]), rows % len(names), model.head)
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder, list(names.values())


def test_a_model_keeps_its_names(model_folder):
    folder, names = model_folder
    model = AutoModelForLwALClassification.from_pretrained(folder)
    assert list(model.config.id2label.values()) == names


def test_commands_stay_in_their_folder_and_in_their_lines(model_folder, tmp_path, capsys, monkeypatch):
    folder, names = model_folder
    monkeypatch.chdir(tmp_path)
    for words in (
        ["predict", str(folder), "key1", "--top-k", str(len(names))],
        ["hierarchy", str(folder), "--output", "h", "--top-k", "2"],
        ["card", str(folder)],
        ["fold", str(folder), "--output", "f"],
    ):
        assert cli.main(words) == 0, capsys.readouterr().err
        said = capsys.readouterr()
        assert not bad_characters(said.out)
        assert "\x1b" not in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "h"]
    pictures = ["dendrogram.png", "distances.png", "hierarchy.json", "map.png", "nearest_labels.csv"]
    assert sorted(path.name for path in (tmp_path / "h").iterdir()) == pictures
    assert not list(folder.rglob("ran"))
    assert {path.name for path in folder.glob("*.md")} == {"README.md"}
