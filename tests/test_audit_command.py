"""``hf-lwal audit``: the rows with a wrong label come first, whatever the data, and hostile ones do no harm."""

from __future__ import annotations

import csv
import re
import wave
from html.parser import HTMLParser

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image
from test_modeling import build
from transformers import Wav2Vec2FeatureExtractor

from hf_lwal.cli.audit_report import Audit, Judged, as_html, histogram, one_line, share_sentence
from hf_lwal.cli.main import main

NAMES = ["alpha", "beta", "gamma"]
WRONG = (5, 17, 42)
HOSTILE = '<script>alert(1)</script> \u202eevil \x1b[31m & key0 "quoted"'


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_config, tokenizer):
    folder = tmp_path_factory.mktemp("model")
    build(tiny_config, "bert").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def audit(capsys):
    """Run the command; returns exit code, lines of standard output, and standard error."""

    def run(*words):
        code = main(["audit", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out.split("\n"), captured.err

    return run


def rows_of_text(rows=90):
    """Texts whose key word tells the label, three of which are wrong."""
    draw = np.random.default_rng(0)
    right = [row % 3 for row in range(rows)]
    texts = [" ".join([f"key{label}"] * 4 + [f"w{draw.integers(9)}"]) for label in right]
    labels = [NAMES[(label + 1) % 3 if row in WRONG else label] for row, label in enumerate(right)]
    return texts, labels, [NAMES[label] for label in right]


def printed_rows(lines):
    """Row numbers of the table, those that are marked with a star."""
    start = next(place for place, line in enumerate(lines) if line.lstrip().startswith("row "))
    found = [re.match(r" *(\d+)(\*?)", line) for line in lines[start + 1 :]]
    until = next(place for place, match in enumerate(found) if match is None)
    return [(int(match[1]), bool(match[2])) for match in found[:until]]


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_wrong_labels_come_first_with_the_numbers_of_the_file(audit, model, tmp_path, kind):
    """Rows left out before must not shift the numbers of those behind them."""
    texts, labels, right = rows_of_text()
    texts[2], labels[3] = "", ""  # no text, no label
    data = Dataset.from_dict({"id": list(range(90)), "text": texts, "label": [label or None for label in labels]})
    file = tmp_path / f"rows.{kind}"
    {"csv": data.to_csv, "parquet": data.to_parquet, "jsonl": data.to_json}[kind](str(file))
    report = tmp_path / "new" / "report.csv"
    code, lines, _ = audit(file, "--model", model, "--output", report, "--limit", 5)
    assert code == 0
    shown = printed_rows(lines)
    assert len(shown) == 5
    assert {number for number, _ in shown[:3]} == {row + 1 for row in WRONG}
    assert all(marked for _, marked in shown[:2])
    assert any(line.startswith("By estimate ") for line in lines)
    with report.open(newline="") as source:
        table = list(csv.DictReader(source))
    assert len(table) == 88, "every row with a text and a label"
    assert {int(row["row"]) for row in table} == set(range(1, 91)) - {3, 4}
    for row in table[:3]:
        place = int(row["row"]) - 1
        assert (row["label"], row["likelier"], row["text"]) == (labels[place], right[place], texts[place])
        assert float(row["wrong"]) == pytest.approx(1 / (1 + np.exp(float(row["margin"]))), abs=1e-4)
    margins = [float(row["margin"]) for row in table]
    assert margins == sorted(margins)


class Reader(HTMLParser):
    """Tags, and the text outside scripts and styles."""

    def __init__(self):
        super().__init__()
        self.tags, self.text, self.images, self._inside = [], [], [], None

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.images += [dict(attrs)["src"]] if tag == "img" else []
        self._inside = tag if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.text.append(data)


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def test_hostile_texts_and_names_stay_text(audit, model, tmp_path):
    """A row of the data must neither run in the browser of who looks at it, nor move the cursor of a terminal."""
    texts, labels, _ = rows_of_text()
    texts[5] = HOSTILE
    labels = [label.replace("beta", "<img src=x onerror=alert(2)>") for label in labels]
    file = tmp_path / "rows.csv"
    Dataset.from_dict({"text": texts, "label": labels}).to_csv(str(file))
    code, lines, _ = audit(file, "--model", model, "--output", tmp_path / "report.html", "--limit", 90)
    assert code == 0
    assert not any("\x1b" in line or "\u202e" in line for line in lines)
    report = read(tmp_path / "report.html")
    assert report.tags.count("script") == 1, "its own"
    assert report.images == []
    text = "".join(report.text)
    assert "<script>alert(1)</script>" in text
    assert "<img src=x onerror=alert(2)>" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "http" not in (tmp_path / "report.html").read_text().replace("http-equiv", "")


def test_a_folder_of_pictures_without_a_model(audit, tmp_path):
    """The pixels themselves tell; thumbnails are inside the report, and a file that is no picture is left out."""
    draw = np.random.default_rng(0)
    for label, name in enumerate(("dark", "bright")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(20):
            level = 60 if (label == 0) != (number == 3 and label == 1) else 190
            values = np.clip(draw.normal(level, 20, (12, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(values).save(tmp_path / "data" / name / f"{number:02}.png")
    (tmp_path / "data" / "dark" / "broken.png").write_bytes(b"no picture")
    code, lines, _ = audit(tmp_path / "data", "--output", tmp_path / "report.html", "--limit", 4)
    assert code == 0
    assert any("broken.png" in line for line in lines)
    table = next(place for place, line in enumerate(lines) if line.lstrip().startswith("row "))
    assert "bright" in lines[table + 1]
    assert lines[table + 1].endswith("03.png")
    report = read(tmp_path / "report.html")
    assert len(report.images) == 4
    assert all(source.startswith("data:image/png;base64,") for source in report.images)


def test_sounds(audit, tmp_path, tiny_config):
    """Waves are read at the rate of the model."""
    model, data = tmp_path / "model", tmp_path / "data"
    build(tiny_config, "wav2vec2").save_pretrained(model)
    Wav2Vec2FeatureExtractor(sampling_rate=4000).save_pretrained(model)
    draw = np.random.default_rng(0)
    for label, name in enumerate(("low", "high")):
        (data / name).mkdir(parents=True)
        for number in range(6):
            tone = np.sin(np.arange(600) * (0.05 if label == 0 else 1.0)) + 0.05 * draw.normal(size=600)
            with wave.open(str(data / name / f"{number}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(4000)
                file.writeframes((8000 * tone).astype(np.int16).tobytes())
    code, lines, _ = audit(data, "--model", model)
    assert code == 0
    assert len(printed_rows(lines)) == 12


def test_pairs_of_texts_and_another_split(audit, model, tmp_path):
    """Both texts are read, and the split that was asked for is the one that is judged."""
    texts, labels, _ = rows_of_text()
    for split, number in (("train", 90), ("test", 60)):
        rows = {"sentence1": ["w1"] * number, "sentence2": texts[:number], "label": labels[:number]}
        Dataset.from_dict(rows).to_csv(str(tmp_path / f"{split}.csv"))
    code, lines, _ = audit(tmp_path, "--model", model, "--split", "test", "--limit", 3)
    assert code == 0
    assert lines[0].startswith("Data: 60 rows of text in 'sentence1' and 'sentence2', 3 labels")
    assert {number for number, _ in printed_rows(lines)} == {row + 1 for row in WRONG}


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ({"text": ["a", "b"], "label": ["x", "x"]}, (), "has only one label, 'x': nothing to tell apart"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, (), "Nothing can be said of the labels in 'label'"),
        ({"text": ["a", "b"], "other": [0.5, 1.5], "third": ["c", "d"]}, (), "Which column"),
        ({"text": ["a", "b"], "label": [None, None]}, (), "holds no label"),
        ({"text": [None, None], "label": ["x", "y"]}, (), "text"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, ("--label-column", "nope"), "there is no column 'nope'"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, ("--split", "test"), "there is no split 'test'; there are train"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, ("--output", "report.pdf"), "must end in .html or .csv"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, ("--output", "rows.csv"), "is the data itself"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, ("--limit", "0"), "--limit must be above 0, got 0"),
        (None, (), "There is no file or folder 'rows.csv'"),
    ],
)
def test_what_cannot_be_audited_is_said_in_a_sentence(audit, model, tmp_path, monkeypatch, rows, words, said):
    monkeypatch.chdir(tmp_path)
    if rows is not None:
        with (tmp_path / "rows.csv").open("w", newline="") as file:
            csv.writer(file).writerows([list(rows), *zip(*rows.values(), strict=True)])
    code, _, error = audit("rows.csv", "--model", model, *words)
    assert code == 2
    assert said in error
    assert len(error.strip().splitlines()) == 1


def judged(margins, suspicious):
    return [
        Judged(row + 1, "a", "b", margin, row < suspicious, f"text {row}")
        for row, margin in enumerate(sorted(margins))
    ]


def test_the_sentence_names_share_number_and_what_cannot_be_judged():
    rows = [*judged([-2.0, 1.0, 3.0, 4.0], 1), Judged(9, "c", None, None, False, "alone")]
    audit = Audit("rows.csv", ["a", "b", "c"], rows, 0.25, "text")
    sentence = share_sentence(audit)
    assert "25.0 % of the 4 labels are wrong, that is 1:" in sentence
    assert sentence.endswith(" Of 1 more row nothing can be said, since no other row has the label: row 9 ('c').")
    many = Audit("rows.csv", ["a"], [*rows, *[rows[-1]] * 6], 0.25, "text")
    assert "Of 7 more rows" in share_sentence(many)
    assert share_sentence(many).count("row 9") == 5, "a data set of ids would fill the screen"
    clean = Audit("rows.csv", ["a", "b"], judged([1.0, 2.0], 0), 0.0, "text")
    assert share_sentence(clean).startswith("By estimate none of the 2 labels is wrong")
    assert "Labels that are swapped" not in as_html(clean, 2)


@pytest.mark.parametrize("margins", [[0.0], [-40.0, 50.0], [1.0] * 5, list(np.linspace(-20, 25, 500))])
def test_the_histogram_holds_every_row(margins):
    """Margins beyond the edges are drawn at the edges, and none twice."""
    margins = sorted(margins)
    picture = histogram(margins, len(margins) // 3)
    heights = [float(value) for value in re.findall(r'height="([\d.]+)"', picture)]
    assert heights
    assert all(0 < height <= 150 for height in heights)
    assert ("<line" in picture) == (len(margins) // 3 > 0)
    assert "nan" not in picture


def test_one_line_keeps_letters_and_loses_controls():
    assert one_line("Grüße\t\n 世界 \x07\u2066") == "Grüße 世界 ��"
    assert one_line("\ud83d") == "�", "half a character, which no file could hold"
