"""A table gives the same rows alone and in a folder, and never loses one without a word."""

import bz2
import gzip
import json
import lzma

import pytest
from PIL import Image

from hf_lwal.cli.train_data import load_rows
from hf_lwal.data.columns import find_columns
from hf_lwal.data.sources import load_splits
from hf_lwal.data.tables import lines_of, read_table
from hf_lwal.errors import CommandError

ROWS = [(f"w{number} and w{number % 7}", ["neg", "neu", "pos"][number % 3]) for number in range(60)]
LINES = ["text\tlabel", *("\t".join(row) for row in ROWS)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Parquet files are read through a cache; keep it out of the user's."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))


def read(path, content, notes=None):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, (notes if notes is not None else []).append)


def pairs(rows):
    return list(zip(rows["text"], rows["label"], strict=True))


def test_words_for_missing_are_words_through_every_door(tmp_path):
    """pandas takes None, NA, n/a and null for missing: labels and texts that say so were lost, in folders only."""
    words = ["None", "NA", "n/a", "null", "nan", "N/A", "NULL", ""]
    content = "text,label\n" + "".join(f"{word},{word or 'x'}\n" for word in words)
    (tmp_path / "folder").mkdir()
    single = read(tmp_path / "single.csv", content)
    (tmp_path / "folder" / "train.csv").write_text(content, "utf-8")
    folder = load_splits(str(tmp_path / "folder"))["train"]
    assert pairs(single) == pairs(folder) == [(word or None, word or "x") for word in words]


def stray(where, separator="\t"):
    """Lines with two quotation marks that enclose whole rows."""
    lines = [line.replace("\t", separator) for line in LINES]
    for number, place in zip((5, 25), where, strict=True):
        lines[number] = {"start": '"' + lines[number], "end": lines[number] + '"', "inside": f'5" {lines[number]}'}[
            place
        ]
    return lines


@pytest.mark.parametrize("where", [("start", "start"), ("start", "end"), ("start", "inside")])
@pytest.mark.parametrize("separator", ["\t", ","])
def test_stray_quotation_marks_swallow_no_rows(where, separator, tmp_path):
    """A mark before one row and another twenty rows later made one row of twenty-one: a third of the data was gone."""
    notes = []
    lines = stray(where, separator)
    rows = read(tmp_path / ("rows.tsv" if separator == "\t" else "rows.csv"), "\n".join(lines) + "\n", notes)
    assert ["\t".join(pair) for pair in pairs(rows)] == [line.replace(separator, "\t") for line in lines[1:]]
    assert len(notes) == 1
    assert "quotation marks" in notes[0]


def test_quoted_cells_keep_separators_marks_and_line_breaks(tmp_path):
    """Quoting that is right must not be undone by the care for quoting that is wrong."""
    notes = []
    content = 'text,label\n"one, two",a\n"said ""hi""",b\n"first line\nsecond line",a\nplain 5" disk,b\n'
    assert pairs(read(tmp_path / "rows.csv", content, notes)) == [
        ("one, two", "a"),
        ('said "hi"', "b"),
        ("first line\nsecond line", "a"),
        ('plain 5" disk', "b"),
    ]
    assert notes == []


def test_marks_that_do_not_enclose_a_cell_stay_in_the_text(tmp_path):
    notes = []
    content = 'text,label\n"one, two",a\n"Hello" he said,b\n"open,a\nlast,b\n'
    assert [text for text, _ in pairs(read(tmp_path / "rows.csv", content, notes))] == [
        "one, two",
        '"Hello" he said',
        '"open',
        "last",
    ]
    assert len(notes) == 1
    assert pairs(read(tmp_path / "slash.csv", 'text,label\n"a \\"b\\", c",x\n"d, e",y\n')) == [
        ('a "b", c', "x"),
        ("d, e", "y"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\nfine,a\none, two,b\n", r"line 3 has 3 cells, but the header has 2 \(text, label\)"),
        ("text,label\n", "has a header, text, label, and no rows"),
        (b"text,label\ncaf\xe9,a\n", "is not a text file in UTF-8: line 2 has the byte 0xe9"),
        ("  \n", "is empty"),
        ('text,label\n"a,b,c\nd,e\n"x", "y" z,f,g\n', "the quotation marks in line 2 do not enclose a cell"),
    ],
)
def test_tables_that_cannot_be_read_name_the_line(content, message, tmp_path):
    with pytest.raises(CommandError, match=message):
        read(tmp_path / "rows.csv", content)


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("bom.csv", lambda text: text.encode("utf-8-sig")),
        ("crlf.csv", lambda text: text.replace("\n", "\r\n").encode()),
        ("utf16.csv", lambda text: text.encode("utf-16")),
        ("mac.csv", lambda text: text.replace("\n", "\r").encode()),
        ("semicolons.csv", lambda text: text.replace(",", ";").encode()),
        ("packed.csv.gz", lambda text: gzip.compress(text.encode())),
        ("blank.csv", lambda text: ("\n" + text.replace("\n", "\n\n")).encode()),
        ("spaces.csv", lambda text: text.replace("text,label", " text , label").encode()),
        ("utf32.csv", lambda text: text.encode("utf-32")),
        ("excel.csv", lambda text: ("sep=;\r\n" + text.replace(",", ";")).encode()),
    ],
)
def test_the_make_of_a_file_changes_no_row(name, encode, tmp_path):
    """A mark at the start made the first column unknown; separators of Unicode are text, not the end of a row."""
    texts = ["a\u2028b", "c\x85d", "e\x0cf", "g\u2029h", "\u00fc"]
    content = "text,label\n" + "".join(f"{text},x\n" for text in texts)
    assert pairs(read(tmp_path / name, encode(content))) == [(text, "x") for text in texts]


def test_long_numbers_keep_their_digits(tmp_path):
    """Ids of 19 digits became decimal numbers, so neighbours were one and the same id."""
    ids = [str(1234567890123456789 + number) for number in range(3)]
    assert read(tmp_path / "rows.csv", "id,text\n" + "".join(f"{id_},x\n" for id_ in ids))["id"][:] == ids


@pytest.mark.parametrize("ending", ["gz", "xz", "bz2"])
def test_damaged_packed_tables_are_said(ending, tmp_path):
    """The errors of unpacking are of three families; two of them looked like a bug of ours."""
    packed = {"gz": gzip, "xz": lzma, "bz2": bz2}[ending].compress("\n".join(LINES).encode())
    for content in (packed[: len(packed) // 2], packed[:30] + bytes(range(0, 200, 10)) + packed[50:]):
        with pytest.raises(CommandError, match="could not be decompressed"):
            read(tmp_path / f"rows.tsv.{ending}", content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("deep.json", "[" * 100_000, "could not be read as json"),
        ("wide.csv", "text,label\na,b\n".encode("utf-16-le"), "holds null bytes"),
    ],
)
def test_other_files_that_cannot_be_read_are_said(name, content, message, tmp_path):
    """Nesting looked like a bug of ours, and UTF-16 without its mark like a column that cannot be cast."""
    with pytest.raises(CommandError, match=message):
        read(tmp_path / name, content)


def test_not_a_number_is_missing_in_json(tmp_path):
    """Python's json writes NaN for a missing cell, which became a class called "nan"."""
    for name, content in {
        "a.json": '[{"label": NaN}, {"label": "x"}]',
        "b.jsonl": '{"label": NaN}\n{"label": "x"}',
    }.items():
        assert read(tmp_path / name, content)["label"][:] == [None, "x"]


def test_numbers_are_numbers_only_where_nothing_is_lost(tmp_path):
    content = "a,b,c,d\n1,01,0.5,x\n,2,1,2\n-3,3,2.5,3\n"
    rows = read(tmp_path / "rows.csv", content)
    assert rows["a"][:] == [1, None, -3]
    assert rows["b"][:] == ["01", "2", "3"]
    assert rows["c"][:] == [0.5, 1.0, 2.5]
    assert rows["d"][:] == ["x", "2", "3"]


def test_a_header_in_the_middle_and_short_rows_are_said(tmp_path):
    """Two files glued together gave a class called "label"."""
    notes = []
    rows = read(tmp_path / "rows.csv", "text,label\na,x\ntext,label\nb,y\nc\n", notes)
    assert pairs(rows) == [("a", "x"), ("b", "y"), ("c", None)]
    assert "the header stands again in line 3" in notes[0]
    assert "1 rows have fewer cells than the header, the first in line 5" in notes[1]
    rows = read(tmp_path / "twice.csv", "text,label,label\na,x,z\n", notes)
    assert rows.column_names == ["text", "label", "label.1"]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps([{"text": "a\u2028b", "label": "x"}, {"text": "2020-01-01", "label": "y"}], ensure_ascii=False),
        json.dumps({"data": [{"text": "a\u2028b", "label": "x"}, {"text": "2020-01-01", "label": "y"}], "version": 1}),
        json.dumps({"text": ["a\u2028b", "2020-01-01"], "label": ["x", "y"]}),
        json.dumps({"text": {"0": "a\u2028b", "1": "2020-01-01"}, "label": {"0": "x", "1": "y"}}),
        '{"text": "a\u2028b", "label": "x"}\n\n{"text": "2020-01-01", "label": "y"}\n',
        '\ufeff{"label": "x", "text": "a\u2028b"}\n{"text": "2020-01-01", "label": "y"}',
    ],
)
def test_every_layout_of_json_gives_the_same_rows(content, tmp_path):
    """A text that looks like a date became a time stamp and was classified as another text."""
    assert pairs(read(tmp_path / "rows.json", content)) == [("a\u2028b", "x"), ("2020-01-01", "y")]


def test_labels_of_unlike_types_are_one_column(tmp_path):
    rows = read(tmp_path / "rows.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n{"text": "c"}\n')
    assert pairs(rows) == [("a", "1"), ("b", "x"), ("c", None)]
    with pytest.raises(CommandError, match="could not be read as jsonl: line 2: "):
        read(tmp_path / "bad.jsonl", '{"text": "a"}\n{"text": \n')


def test_lines_end_at_line_feeds_alone():
    assert lines_of("a\u2028b\x85c\x0cd\r\n\n e\n") == ["a\u2028b\x85c\x0cd", "", " e"]


# -- folders and columns ----------------------------------------------------------------------------------------------


def test_splits_of_a_folder_may_have_unlike_columns(tmp_path):
    """A test file without labels refused the folder, and the Hub was blamed for it."""
    (tmp_path / "train.csv").write_text("\n".join(LINES).replace("\t", ","), "utf-8")
    (tmp_path / "test.csv").write_text("id,text\n1,w1 w2\n2,w3\n", "utf-8")
    (tmp_path / "valid.jsonl").write_text('{"text": "a", "label": "neg", "more": [1]}\n', "utf-8")
    rows = load_rows(str(tmp_path))
    assert len(rows.train) == 60
    assert rows.test is None
    assert len(rows.validation) == 1
    assert rows.notes == ("split 'test' is left out: it has no column 'label'",)


@pytest.mark.parametrize(
    "names", [("TRAIN.CSV", "test.csv"), ("Train/a.csv", "Test/a.csv"), ("my_Train.csv", "my_Test.csv")]
)
def test_capitals_name_splits_too(names, tmp_path):
    """Train and Test, written so, were both training rows."""
    for name, text in zip(names, ("w1", "w2"), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text,label\n{text},a\n", "utf-8")
    found = load_splits(str(tmp_path))
    assert {name: rows["text"][:] for name, rows in found.items()} == {"train": ["w1"], "test": ["w2"]}


def test_a_label_called_train_is_no_split(tmp_path):
    """Taken for a split, it would leave the pictures of all other labels out."""
    for label in ("Train", "Van"):
        (tmp_path / label).mkdir()
        Image.new("RGB", (4, 4)).save(tmp_path / label / "1.png")
    assert load_splits(str(tmp_path))["train"]["label"][:] == ["Train", "Van"]


def test_the_parts_of_a_split_are_joined(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.csv").write_text("text,label\nx,0\ny,1\n", "utf-8")
    (tmp_path / "train" / "b.csv").write_text("label,text\none,z\n", "utf-8")
    assert pairs(load_splits(str(tmp_path))["train"]) == [("x", "0"), ("y", "1"), ("z", "one")]
    (tmp_path / "train" / "c.csv").write_text("text,other\nx,0\n", "utf-8")
    with pytest.raises(CommandError, match=r"read as one split, but their columns differ"):
        load_splits(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["nosuch.csv", "data/more/nosuch", "./here", "~/there.parquet", "cats.zip", "nosuch.csv.gz", "C:\\data"]
)
def test_a_path_is_not_looked_for_on_the_hub(name, monkeypatch):
    monkeypatch.setattr("datasets.load_dataset", lambda *_: pytest.fail("the Hub was asked"))
    with pytest.raises(CommandError, match="There is no file or folder"):
        load_splits(name)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("id,review,sentiment", ("review", "sentiment")),
        ("Text,Label", ("Text", "Label")),
        ("tweet,airline", ("tweet", "airline")),
        ("id,something,label", ("something", "label")),
        ("number,text,Category", ("text", "Category")),
    ],
)
def test_plain_columns_are_guessed(header, expected, tmp_path):
    """To be asked for a column that everyone can see is a reason to leave."""
    cells = ["7,some words,x", "8,other words,y"] if header.count(",") == 2 else ["some words,x", "other words,y"]
    rows = read(tmp_path / "rows.csv", "\n".join([header, *cells]))
    columns = find_columns(rows.features)
    assert (columns.input, columns.label) == expected


def test_all_that_is_missing_is_asked_for_at_once(tmp_path):
    rows = read(tmp_path / "rows.csv", "a,b,c\nx,y,z\n")
    with pytest.raises(CommandError, match=r"--text-column and --label-column; there are a, b, c"):
        find_columns(rows.features)


def test_a_blank_text_is_no_input_through_any_door(tmp_path):
    lines = [json.dumps({"text": text, "label": label}) for text, label in [("", "a"), (" ", "b"), *ROWS]]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), "utf-8")
    rows = load_rows(str(tmp_path / "rows.jsonl"))
    assert rows.notes[0] == "2 rows of split 'train' without input are left out"
