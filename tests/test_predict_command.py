"""``hf-lwal predict``: an answer for every input, beside the right one, or a word about it."""

import csv
import io
import json
import sys
import wave
from copy import deepcopy

import numpy as np
import pytest
from PIL import Image
from test_modeling import build
from torch.utils.data import DataLoader
from toy import separable_text
from transformers import (
    AutoModelForAudioClassification,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ViTImageProcessor,
    Wav2Vec2FeatureExtractor,
    set_seed,
)

from hf_lwal.cli.main import main
from hf_lwal.cli.predict_inputs import _streamed
from hf_lwal.data.tables import decoded, lines_of

RATE = 4_000
SEPARATED = "key1 one\u2028still one"
"""A text with a line separator of Unicode inside."""


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_config, tokenizer):
    """Folders of random classifiers: a text model with a label table, stock ones of pictures and sounds."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("text", "image", "audio")}
    build(tiny_config, "bert").save_pretrained(folders["text"])
    tokenizer.save_pretrained(folders["text"])
    set_seed(0)
    AutoModelForImageClassification.from_config(tiny_config("vit")).save_pretrained(folders["image"])
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folders["image"])
    AutoModelForAudioClassification.from_config(tiny_config("wav2vec2")).save_pretrained(folders["audio"])
    Wav2Vec2FeatureExtractor(sampling_rate=RATE).save_pretrained(folders["audio"])
    return folders


@pytest.fixture
def predict(models, capsys):
    """Run the command; returns exit code, lines of standard output, and standard error."""

    def run(kind, *words):
        code = main(["predict", str(models[kind]), *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out.split("\n")[:-1], captured.err

    return run


def records(lines):
    return [json.loads(line) for line in lines]


def inputs(lines):
    return [line.split("\t")[1] for line in lines]


@pytest.mark.parametrize("door", ["--file", "word", "-", "--file -"])
@pytest.mark.parametrize("make", ["plain", "mark", "returns"])
def test_lines_end_at_line_feeds_and_blank_ones_are_named(door, make, predict, tmp_path, monkeypatch):
    """Five lines gave six answers, each after the third beside the wrong line, and a mark stayed in the first text."""
    text = f"key2 key2\n{SEPARATED}\n\nkey3\x0cpage\nkey0\x85next\n"
    content = {"plain": text, "mark": "\ufeff" + text, "returns": text.replace("\n", "\r\n")}[make].encode()
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    words = {"--file": ["--file", path], "word": [path], "-": ["-"], "--file -": ["--file", "-"]}[door]
    code, lines, error = predict("text", *words, "--json")
    found = records(lines)
    assert code == 0
    assert [record["input"] for record in found] == ["key2 key2", SEPARATED, "", "key3\x0cpage", "key0\x85next"]
    assert [record["label"] is None for record in found] == [False, False, True, False, False]
    assert "no answer for line 3 of " in error
    assert ("is a file: what it holds is classified" in error) == (door == "word")


@pytest.mark.parametrize("word", ["rows.csv", "nowhere/lines.txt", "rows.JSONL.gz", "~/rows.parquet"])
def test_a_file_that_does_not_exist_is_not_classified_by_its_name(word, predict):
    """A mistyped path got a label, with exit code 0, as if somebody had asked about it."""
    code, lines, error = predict("text", word)
    assert (code, lines) == (2, [])
    assert f"There is no file {word!r}" in error


@pytest.mark.parametrize("word", ["key1.", "see rows.csv", "example.com", "v1.2"])
def test_texts_that_only_look_a_little_like_files_are_texts(word, predict):
    code, lines, _ = predict("text", word)
    assert (code, inputs(lines)) == (0, [word])


def test_blank_words_have_no_answer(predict):
    """An unset variable of the shell was taken for the folder one is in, and a space for a bug."""
    code, lines, errors = predict("text", "", " ", "key1")
    assert code == 0  # as blank lines of a file
    assert len(lines) == 1
    assert "key1" in lines[0]
    assert "no answer for ''" in errors
    assert "no answer for ' '" in errors


def test_people_get_lines_for_answers_only(predict, tmp_path):
    (tmp_path / "lines.txt").write_text("key1\n \nkey2\n", encoding="utf-8")
    code, lines, error = predict("text", tmp_path / "lines.txt")
    assert (code, inputs(lines)) == (0, ["key1", "key2"])
    assert "line 2" in error


@pytest.mark.parametrize("door", ["--file", "-"])
def test_other_encodings_are_refused_in_a_sentence(door, predict, tmp_path, monkeypatch):
    (tmp_path / "latin.txt").write_bytes(b"key1\ncaf\xe9\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"key1\ncaf\xe9\n"), encoding="utf-8"))
    code, _, error = predict("text", "--file", tmp_path / "latin.txt" if door == "--file" else "-")
    assert code == 2
    assert "is not a text file in UTF-8: line 2 has the byte 0xe9" in error


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json"])
def test_missing_cells_are_named_and_the_others_answered(kind, predict, tmp_path):
    """One empty cell refused a whole file, or the word "None" was classified for it."""
    rows = [(7, "key1"), (8, None), (9, "None"), ("x10", "key3")]
    path = tmp_path / f"gaps.{kind}"
    if "json" in kind:
        objects = [{"id": number, "text": text} for number, text in rows]
        path.write_text(json.dumps(objects) if kind == "json" else "\n".join(map(json.dumps, objects)), "utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="," if kind == "csv" else "\t").writerows([("id", "text"), *rows])
    code, lines, error = predict("text", "--file", path, "--json")
    found = records(lines)
    assert code == 0
    assert [str(record["id"]) for record in found] == ["7", "8", "9", "x10"]
    assert [record["input"] for record in found] == ["key1", "", "None", "key3"]
    assert [record["label"] is None for record in found] == [False, True, False, False]
    assert f"no answer for row 2 of {path}" in error


def test_pairs_without_a_second_text_are_not_answered(predict, tmp_path):
    (tmp_path / "pairs.csv").write_text("premise,hypothesis\nkey1,key2\nkey3,\n", encoding="utf-8")
    _, lines, error = predict("text", "--file", tmp_path / "pairs.csv", "--json")
    assert [record["input"] for record in records(lines)] == ["key1 | key2", "key3 | "]
    assert [record["label"] is None for record in records(lines)] == [False, True]
    assert "no answer for row 2" in error


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json"])
def test_answers_are_written_whole(kind, predict, tmp_path):
    source, output = tmp_path / "rows.csv", tmp_path / f"answers.{kind}"
    source.write_text('key,body\nb,"key1, ""quoted"""\na,\nc,key2\n', encoding="utf-8")
    flags = ["--file", source, "--text-column", "body", "--id-column", "key", "--top-k", "2"]
    code, lines, _ = predict("text", *flags, "--output", output)
    assert (code, lines) == (0, [f"Written: {output} (3 answers)"])
    text = output.read_text(encoding="utf-8")
    if "json" in kind:
        found = json.loads(text) if kind == "json" else records(text.splitlines())
    else:
        found = list(csv.DictReader(io.StringIO(text), dialect="excel" if kind == "csv" else "excel-tab"))
        assert [float(row["score"]) >= float(row["score_2"]) for row in found if row["label"]] == [True, True]
    assert [row["id"] for row in found] == ["b", "a", "c"]
    assert [row["input"] for row in found] == ['key1, "quoted"', "", "key2"]
    assert [bool(row["label"]) for row in found] == [True, False, True]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["key1", "--output", "{tmp}/x.xlsx"], "must end in .csv, .tsv, .json, .jsonl"),
        (["key1", "--output", "{tmp}/no/x.csv"], "lies in a folder that does not exist"),
        (["{tmp}/rows.csv", "--output", "{tmp}/rows.csv"], "is what is to be classified"),
        (["--file", "{tmp}/rows.csv", "--id-column", "number"], "--id-column: there is no column 'number'"),
        (["--file", "{tmp}/lists.jsonl"], "is of type "),
        (["{tmp}"], "is a folder; name the files in it"),
        (["{tmp}/a.png"], "a.png' is a picture, and this model classifies texts"),
        (["--file", "{tmp}/a.WAV"], "a.WAV' is a sound, and this model classifies texts: name a model of sounds"),
        (["--file", "{tmp}/blank.txt"], "holds nothing to classify"),
        (["--file", "{tmp}/pictures.csv", "--text-column", "image"], "holds image, but this model classifies text"),
    ],
)
def test_mistakes_are_one_sentence(flags, message, predict, tmp_path):
    (tmp_path / "rows.csv").write_text("text\nkey1\n", encoding="utf-8")
    (tmp_path / "lists.jsonl").write_text('{"text": ["a", "b"]}\n', encoding="utf-8")
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "a.WAV").write_bytes(b"RIFF")
    (tmp_path / "pictures.csv").write_text("image\na.png\n", encoding="utf-8")
    code, _, error = predict("text", *(flag.format(tmp=tmp_path) for flag in flags))
    assert code == 2
    assert message in error.splitlines()[-1]


def test_long_texts_are_cut_where_the_tokenizer_states_no_limit(tmp_path, tokenizer, tiny_config):
    """Tokenizers of many models on the Hub state 1e30 tokens: the first long text ended in a traceback."""
    unlimited = deepcopy(tokenizer)
    unlimited.model_max_length = int(1e30)
    folder = tmp_path / "model"
    AutoModelForSequenceClassification.from_config(tiny_config("bert")).save_pretrained(folder)
    unlimited.save_pretrained(folder)
    long, rows = "key1 " * 100, [f"key{number % 2} {'word1 ' * 100},{'ab'[number % 2]}" for number in range(12)]
    assert main(["predict", str(folder), long, "key2"]) == 0
    (tmp_path / "long.csv").write_text("\n".join(["text,label", *rows]), "utf-8")
    output = tmp_path / "out"
    words = [f"--data={tmp_path / 'long.csv'}", f"--model={folder}", f"--output-dir={output}", "--use-cpu=true"]
    assert main(["train", *words, "--max-steps=1", "--overwrite"]) == 0
    assert AutoTokenizer.from_pretrained(output).model_max_length == 40, "the model's positions are saved"
    assert main(["train", *words, "--max-steps=1", "--overwrite", "--max-length=16"]) == 0
    assert AutoTokenizer.from_pretrained(output).model_max_length == 16, "what training read is saved"
    assert (
        main(["fold", str(output), "--output", str(tmp_path / "stock"), "--inputs", str(tmp_path / "long.csv")]) == 0
    )


# -- pictures and sounds ----------------------------------------------------------------------------------------------


def picture(path, top=255, deep=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(len(path.name)).random((16, 16))
    Image.fromarray((top * values).astype(np.uint16 if deep else np.uint8)).save(path)
    return path


def sound(path, rate=RATE, seconds=0.2, channels=1, pitch=300.0):
    """A tone of 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tone = np.sin(2 * np.pi * pitch * np.arange(int(rate * seconds)) / rate)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat((9000 * tone).astype("<i2"), channels).tobytes())
    return path


@pytest.mark.parametrize(("kind", "make", "ending"), [("image", picture, "png"), ("audio", sound, "wav")])
def test_one_unreadable_file_leaves_the_others_their_answers(kind, make, ending, predict, tmp_path):
    """A damaged file ended everything in a traceback, and no file had an answer."""
    for name in "ac":
        make(tmp_path / "ask" / f"{name}.{ending}")
    whole = make(tmp_path / f"whole.{ending}").read_bytes()
    (tmp_path / "ask" / f"b.{ending}").write_bytes(whole[: 60 if kind == "image" else 20])
    (tmp_path / "list.csv").write_text(
        f"id,path\n1,ask/a.{ending}\n2,ask/b.{ending}\n3,ask/c.{ending}\n4,ask/gone.{ending}\n", "utf-8"
    )
    code, lines, error = predict(kind, tmp_path / "ask")
    assert code == 1, "programs that look at nothing else must notice"
    assert inputs(lines) == [str(tmp_path / "ask" / f"{name}.{ending}") for name in "ac"]
    assert f"no answer for {tmp_path / 'ask' / f'b.{ending}'}: cannot be read (" in error
    code, lines, error = predict(kind, "--file", tmp_path / "list.csv", "--json")
    assert [record["label"] is not None for record in records(lines)] == [True, False, True, False]
    assert [record["id"] for record in records(lines)] == [1, 2, 3, 4]
    assert "there is no such file" in records(lines)[3]["error"]


def test_deep_pictures_are_answered_as_their_8_bit_twins(predict, tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (16, 16))
    Image.fromarray((257 * values).astype(np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray(values.astype(np.uint8)).save(tmp_path / "plain.png")
    _, lines, _ = predict("image", tmp_path / "deep.png", tmp_path / "plain.png", "--json")
    deep, plain = ({**record, "input": ""} for record in records(lines))
    assert deep == plain


def test_a_list_of_paths_is_read_beside_itself(predict, tmp_path):
    picture(tmp_path / "there" / "a.png")
    (tmp_path / "there" / "list.txt").write_text("a.png\n\n", encoding="utf-8")
    code, lines, _ = predict("image", "--file", tmp_path / "there" / "list.txt")
    assert (code, inputs(lines)) == (0, ["a.png"])


def test_a_stock_model_of_sounds_reads_files_without_ffmpeg(predict, tmp_path, monkeypatch):
    """Its class is called ...ForSequenceClassification, so that it was taken for one of texts."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    files = [sound(tmp_path / "plain.wav"), sound(tmp_path / "stereo.wav", channels=2)]
    code, lines, _ = predict("audio", *files, "--json")
    assert code == 0
    first, second = (record["score"] for record in records(lines))
    assert first == pytest.approx(second, rel=1e-5), "two equal channels are one"
    (tmp_path / "other.mp3").write_bytes(b"ID3 no sound")
    code, _, error = predict("audio", tmp_path / "other.mp3")
    assert code != 0
    assert "Traceback" not in error


class Chunks:
    """Standard input that gives what it has piece by piece, as a pipe does, and tells when it was asked for more."""

    def __init__(self, pieces, told=lambda: None):
        self.pieces, self.told = list(pieces), told
        self.buffer = self

    def read1(self, _):
        self.told()
        return self.pieces.pop(0) if self.pieces else b""


def test_lines_of_a_pipe_are_answered_before_the_next_ones_come(predict, monkeypatch, capsys):
    """`tail -f log | hf-lwal predict MODEL -` printed nothing until the log ended, which it never does."""
    shown = []
    pipe = Chunks([b"key1 one\nkey", b"2\n", b"key3"], lambda: shown.append(capsys.readouterr().out.count("\n")))
    monkeypatch.setattr(sys, "stdin", pipe)
    _, lines, _ = predict("text", "-")
    assert shown == [0, 1, 1, 0], "one line after the first piece, one after the second, the third at the end"
    assert inputs(lines) == ["key3"]


@pytest.mark.parametrize(
    "content",
    [
        "key1\nkey2 é 😀\r\n\n\ufeffkey3\n".encode(),
        "\ufeffkey1\nkey2\n\ufeffkey3".encode(),
        b"key1\rkey2\rkey3",
        b"key1\nkey2\rstill two\n\nkey4\r",
        "key1\nkey2 é\n".encode("utf-16"),
        b"",
        b"\n\nkey1",
    ],
)
def test_lines_are_the_same_however_a_pipe_cuts_them(content):
    """A cut inside a character, a mark or a line end would change a text or move every answer after it by a line."""
    expected = lines_of(decoded(content, "all"))
    for size in (1, 2, 3, 5, 64):
        pieces = iter([content[place : place + size] for place in range(0, len(content), size)])
        found = [entry for group in _streamed(pieces, "pipe") for entry in group]
        assert [entry.shown for entry in found] == expected
        assert [entry.place for entry in found] == [f"line {number} of pipe" for number in range(1, len(found) + 1)]


def test_a_wrong_byte_late_in_a_pipe_is_named_by_its_line(predict, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Chunks([b"key1\n", b"key2\nkey3\n", b"\xffkey4\n"]))
    code, lines, error = predict("text", "-")
    assert (code, len(lines)) == (2, 3), "what came before it has its answers"
    assert "line 4 has the byte 0xff" in error


def test_a_pipe_with_nothing_to_classify_is_refused(predict, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Chunks([b"\n \n", b"\t\n"]))
    code, lines, error = predict("text", "-")
    assert (code, lines) == (2, [])
    assert "'-' holds nothing to classify" in error.replace("['-']", "'-'")


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ("ticket_id,text", "a1"),
        ("text,uuid", "a1"),
        ("Ticket ID,text", "a1"),
        ("customerId,text", "a1"),
        ("id,other_id,text", "a1"),  # the plain name wins
        ("user_id,ticket_id,text", None),  # which of them?
        ("paid,text", None),
    ],
)
def test_ids_of_a_table_are_kept(columns, kept, predict, tmp_path):
    """Answers without ids cannot be joined with the rows that they are for."""
    names = columns.split(",")
    numbers = iter(("a1", "a2"))
    cells = ["key1" if name == "text" else next(numbers) for name in names]
    (tmp_path / "rows.csv").write_text(f"{columns}\n{','.join(cells)}\n", encoding="utf-8")
    flags = ["--text-column", "text", "--json"]
    (record,) = records(predict("text", "--file", tmp_path / "rows.csv", *flags)[1])
    assert record.get("id") == kept


@pytest.fixture(scope="module")
def rejecting(tmp_path_factory, tiny_config, tokenizer):
    """A folder with a text model that knows how far rows of its labels lie, and the model."""
    folder = tmp_path_factory.mktemp("rejecting")
    model = build(tiny_config, "bert")
    rows = DataLoader(separable_text(model.config.num_labels, 24).with_format("torch"), batch_size=8)
    model.initialize_labels(rows, progress=False)
    model.fit_rejection(rows, progress=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model


def test_inputs_of_no_label_are_rejected(rejecting, tokenizer, tmp_path, capsys):
    """The command answered with a label whatever was asked, also where the model could have said none of these."""
    folder, model = rejecting
    (tmp_path / "rows.csv").write_text("id,text\n1,key1 word1\n2,word9 word8\n3,\n4,key2 key2\n", encoding="utf-8")
    asked = ["key1 word1", "word9 word8", "key2 key2"]
    far = [row["rejection_score"] for row in model.predict_with_rejection(asked, tokenizer)]
    threshold = sum(sorted(far)[1:]) / 2  # between two of them
    expected = model.predict_with_rejection(asked, tokenizer, "none", threshold=threshold)
    assert 0 < sum(row["label"] == "none" for row in expected) < 3, "a threshold that decides nothing tests nothing"
    words = ["predict", str(folder), str(tmp_path / "rows.csv"), "--reject", "none", "--threshold", str(threshold)]
    assert main([*words, "--json", "--batch-size", "2"]) == 0
    found = records(capsys.readouterr().out.split("\n")[:-1])
    assert [record["id"] for record in found] == [1, 2, 3, 4]
    assert found[2]["label"] is None
    answered = [record for record in found if record["label"] is not None]
    assert [(one["label"], one["nearest"]) for one in answered] == [(row["label"], row["nearest"]) for row in expected]
    np.testing.assert_allclose([one["rejection_score"] for one in answered], far, rtol=1e-4)
    assert main(words) == 0
    shown = capsys.readouterr().out.split("\n")[:-1]
    assert [line.startswith("none (nearest: ") for line in shown] == [row["label"] == "none" for row in expected]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--threshold", "2"], "--threshold is for --reject"),
        (["--reject", " "], "--reject is empty"),
        (["--reject", "unknown", "--top-k", "2"], "leave one of them out"),
        (["--reject", "LABEL_1"], "'LABEL_1' is a label of the model"),
        (["--reject", "unknown", "--threshold", "0"], "--threshold must be above 0"),
    ],
)
def test_mistakes_with_rejection_are_one_sentence(flags, message, rejecting, capsys):
    assert main(["predict", str(rejecting[0]), "key1", *flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("kind", "message"), [("text", "train with --fit-rejection"), ("image", "needs a model with a label table")]
)
def test_models_that_cannot_reject_say_what_to_do(kind, message, predict, tmp_path):
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    code, lines, error = predict(kind, "key1" if kind == "text" else tmp_path / "a.png", "--reject", "unknown")
    assert (code, lines) == (2, [])
    assert message in error
