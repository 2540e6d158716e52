"""Rows of the data on a model card: whose are shown, that no text of theirs breaks it, and that their files work."""

import contextlib
import io
import json
import re
import sys
import wave
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Image as ImageColumn
from huggingface_hub.errors import RepositoryNotFoundError
from hypothesis import given
from PIL import Image
from test_model_card import HOSTILE, MARKDOWN, NAMES, facts_named, metadata, structure
from toy import IMAGE_SIZE, separable_audio, separable_text, word_tokenizer
from transformers import ViTImageProcessor, Wav2Vec2FeatureExtractor

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.cli.main import main
from hf_lwal.data import load_embedded
from hf_lwal.model_card import CardFacts, Sample, SplitFacts, render, write_card
from hf_lwal.model_card.media import LONGEST_SECONDS, Sound, picture_of, png, read_wav, sound_of, wav
from hf_lwal.model_card.provenance import _shown_to_anyone, hub_revision, sample_count
from hf_lwal.model_card.samples import Reader, sample_rows
from hf_lwal.model_card.text import visible

NUM_LABELS = 4
NAMES_OF_LABELS = {index: f"kind {index}" for index in range(NUM_LABELS)}
RATE = 8000


def answer_of_the_hub(monkeypatch, **info):
    """Let the Hub say something about every data set; returns the ids it was asked for."""
    asked = []

    def dataset_info(self, name, timeout=None):
        asked.append(name)
        assert self.token is False, "with the user's token a private data set would look like a public one"
        if "error" in info:
            raise info["error"]
        return SimpleNamespace(**{"private": False, "gated": False, "disabled": False, **info})

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    _shown_to_anyone.cache_clear()
    return asked


def build(tiny_config, output, name, train, evaluation, processing_class, **arguments):
    config = tiny_config(name, id2label=NAMES_OF_LABELS, label2id={n: i for i, n in NAMES_OF_LABELS.items()})
    values = {"max_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    values["remove_unused_columns"] = name != "vit"
    return LwALTrainer(
        AutoModelForLwALClassification.from_config(config),
        LwALTrainingArguments(str(output), **values, **arguments),
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=processing_class,
    )


@pytest.fixture(scope="module")
def text_trainer(tiny_config, tmp_path_factory):
    """A trainer after one step; the tokens of its rows are all that is left of their texts."""
    rows = [separable_text(NUM_LABELS, 16, seed=seed) for seed in (0, 1)]
    trainer = build(tiny_config, tmp_path_factory.mktemp("text") / "model", "bert", *rows, word_tokenizer())
    trainer.train()
    trainer.save_model()
    return trainer


def card_of(trainer, tmp_path, monkeypatch, **said):
    """Text of a card that a trainer writes into an empty folder, and the facts beside it."""
    monkeypatch.setattr(trainer.args, "output_dir", str(tmp_path / "out"))
    monkeypatch.setattr(trainer._hub_pushes, "said", {})
    trainer.create_model_card(**said)
    texts = [(tmp_path / "out" / name).read_text(encoding="utf-8") for name in ("README.md", "card_facts.json")]
    return texts[0], texts[1]


class TestWhoseRows:
    @pytest.mark.parametrize("said", [{}, {"dataset": "my customers"}])
    def test_rows_stay_private_where_nobody_said_otherwise(self, text_trainer, tmp_path, monkeypatch, said):
        asked = answer_of_the_hub(monkeypatch)
        card, facts = card_of(text_trainer, tmp_path, monkeypatch, **said)
        assert not re.search(r"key\d|word\d", card + facts), "words of the rows"
        assert "Samples of the" not in card
        assert "widget" not in metadata(card)
        assert asked == []

    @pytest.mark.parametrize("said", [{"dataset_tags": "me/data"}, {"dataset": "me/data"}])
    def test_rows_that_anyone_can_see_are_shown(self, text_trainer, tmp_path, monkeypatch, said):
        assert answer_of_the_hub(monkeypatch) == []
        card, _ = card_of(text_trainer, tmp_path, monkeypatch, **said)
        tokens = text_trainer.eval_dataset.with_format(None)
        for part, rows in (("training", text_trainer.train_dataset), ("evaluation", tokens)):
            table = card.partition(f"Samples of the {part} rows:")[2].strip().split("\n\n")[0].splitlines()
            assert table[0].startswith("| `text from tokens` | label |")
            assert len(table) == 2 + 3
            assert len({line.split("|")[2] for line in table[2:]}) == 3, "of different labels"
            words = [text_trainer.processing_class.decode(row["input_ids"], skip_special_tokens=True) for row in rows]
            shown = [line.split("|")[1].strip(" `") for line in table[2:]]
            assert set(shown) <= set(words)
        answered = [line for line in table[2:] if re.search(r"\| `kind \d` \d\.\d\d \|$", line)]
        assert len(answered) == 3, "the model was asked about the rows that it has not learned"
        assert [entry["text"] for entry in metadata(card)["widget"]] == shown
        assert f'    "{shown[0]}",' in card, "the snippets ask about the same rows"

    @pytest.mark.parametrize(
        "info",
        [
            {"private": True},
            {"gated": "manual"},
            {"disabled": True},
            {"error": RepositoryNotFoundError.__new__(RepositoryNotFoundError)},
            {"error": ConnectionError()},
        ],
    )
    def test_rows_that_not_everyone_can_see_are_not_shown(self, text_trainer, tmp_path, monkeypatch, info):
        """People name their private data sets too, and a card may be public when the rows are not."""
        asked = answer_of_the_hub(monkeypatch, **info)
        card, facts = card_of(text_trainer, tmp_path, monkeypatch, dataset_tags="me/data")
        assert not re.search(r"key\d|word\d", card + facts)
        assert set(asked) == {"me/data"}

    def test_the_record_of_the_rows_counts_more_than_what_was_said(self, monkeypatch):
        asked = answer_of_the_hub(monkeypatch)
        rows = separable_text(NUM_LABELS, 4)
        rows.info.download_checksums = {"hf://datasets/me/one@main/a.parquet": {}, "hf://datasets/me/two@1/b.csv": {}}
        assert sample_count(rows, ["me/public"]) == 3
        assert asked == ["me/one", "me/two"]
        assert hub_revision(rows) is None, "of two data sets"
        rows.info.download_checksums["/home/me/own.csv"] = {}
        assert sample_count(rows, []) == 0, "some of the rows are from this machine"

    def test_the_commit_of_the_rows_is_known(self):
        rows = separable_text(NUM_LABELS, 4)
        assert hub_revision(rows) is None
        rows.info.download_checksums = {f"hf://datasets/me/one@{'a1' * 20}/{part}.parquet": {} for part in "ab"}
        assert hub_revision(rows) == "a1" * 20
        rows.info.download_checksums = {"hf://datasets/me/one@main/a.parquet": {}}
        assert hub_revision(rows) is None, "a branch moves"

    def test_all_named_data_sets_must_be_public(self, monkeypatch):
        monkeypatch.setattr("hf_lwal.model_card.provenance.is_public", lambda name: name != "me/private")
        assert sample_count([], ["me/public", "me/private"]) == 0

    def test_embedded_rows_are_known_after_any_preparation(self):
        rows = load_embedded("clinc150")["test"].select([3, 1, 2]).map(lambda row: {"more": row["text"]})
        assert sample_count(rows.remove_columns("text").with_format("torch"), []) == 3
        assert sample_count(Dataset.from_list(rows.to_list()), []) == 0

    def test_the_switch_wins_both_ways(self, text_trainer, tmp_path, monkeypatch):
        answer_of_the_hub(monkeypatch)
        assert "Samples of" not in card_of(text_trainer, tmp_path, monkeypatch, dataset_tags="me/data", samples=0)[0]
        monkeypatch.setattr(text_trainer.args, "lwal_card_samples", 1)
        assert card_of(text_trainer, tmp_path, monkeypatch)[1].count('"texts"') == 2, "one row of each"
        assert card_of(text_trainer, tmp_path, monkeypatch, samples=2)[1].count('"texts"') == 4
        text_trainer.create_model_card()
        assert text_trainer._hub_pushes.said["samples"] == 2, "and it holds for later calls"
        with pytest.raises(ValueError, match="samples is -1, but it must be 0 or more"):
            text_trainer.create_model_card(samples=-1)
        with pytest.raises(ValueError, match="lwal_card_samples is -2"):
            LwALTrainingArguments(str(tmp_path), lwal_card_samples=-2).resolve_lwal()

    def test_rows_that_were_taken_back_are_gone_everywhere(self, text_trainer, tmp_path, monkeypatch):
        """The widget of the old card would otherwise keep what the new one must not show."""
        card_of(text_trainer, tmp_path, monkeypatch, samples=3)
        card, facts = card_of(text_trainer, tmp_path, monkeypatch, samples=0)
        assert not re.search(r"key\d|word\d", card + facts)

    def test_examples_of_the_caller_come_first(self, text_trainer, tmp_path, monkeypatch):
        card, _ = card_of(text_trainer, tmp_path, monkeypatch, samples=1, examples=["word1 key2"])
        assert metadata(card)["widget"] == [{"text": "word1 key2"}]
        assert "Samples of the training rows" in card

    def test_the_number_of_shown_rows_is_no_setting_of_the_training(self, text_trainer, tmp_path, monkeypatch):
        monkeypatch.setattr(text_trainer.args, "lwal_card_samples", 1)
        assert "lwal_card_samples" not in card_of(text_trainer, tmp_path, monkeypatch)[0]


def with_rows(texts):
    """Facts whose sample rows and answers are made of ``texts``."""
    texts = [visible(text, 300) for text in texts]
    samples = [Sample(text, {"text": text, "second": texts[-1]}) for text in texts]
    return facts_named(
        ["Plain (name)"],
        train=SplitFacts(6, ["text"], samples=samples),
        evaluation=SplitFacts(6, ["text"], samples=[Sample(text, {"text": text}) for text in texts]),
        examples=[(text, text, 0.5) for text in texts],
    )


class TestHostileRows:
    @given(NAMES)
    def test_rows_change_texts_and_nothing_else(self, text):
        assert structure(render(with_rows([text, "b"]))) == structure(render(with_rows(["a", "b"])))

    @pytest.mark.parametrize("text", [*HOSTILE, "long " * 500])
    def test_a_row_of_a_data_set_is_one_cell(self, text):
        rows = [{"text": text, "label": 0}, {"text": "other", "label": 1}]
        samples, files = sample_rows(rows, "training", 2, Reader("text", {0: text, 1: "b"}))
        card = render(facts_named(["x"], train=SplitFacts(2, ["text"], samples=samples)))
        tokens = MARKDOWN.parse(card.partition("Samples of the training rows:")[2].partition("###")[0])
        cells = [tokens[place + 1].children for place, token in enumerate(tokens) if token.type == "td_open"]
        assert [[child.type for child in cell] for cell in cells] == [["code_inline"]] * 4
        assert cells[0][0].content == (visible(text, 300) or "(no name)")
        assert len(cells[0][0].content) <= 300
        assert files == {}
        assert render(CardFacts.from_json(with_rows([text]).to_json())) == render(with_rows([text]))

    def test_a_pair_is_two_texts_and_no_example(self):
        tokenizer = word_tokenizer()
        ids = [tokenizer.cls_token_id, *tokenizer("key1 word1")["input_ids"][1:], *tokenizer("key2")["input_ids"][1:]]
        rows = Dataset.from_dict({"input_ids": [ids], "labels": [1]})
        (sample,), _ = sample_rows(rows, "training", 3, Reader("text", NAMES_OF_LABELS, tokenizer))
        assert sample.texts == {"text 1 from tokens": "key1 word1", "text 2 from tokens": "key2"}
        assert (sample.label, sample.input) == ("kind 1", None)

    def test_rows_without_label_and_streams_are_left_out(self):
        rows = Dataset.from_dict({"text": ["a", "b", "c"], "label": [-100, 2, 2]})
        samples, _ = sample_rows(rows, "training", 3, Reader("text", NAMES_OF_LABELS))
        assert [(sample.texts["text"], sample.label) for sample in samples] == [("b", "kind 2"), ("c", "kind 2")]
        assert sample_rows(rows.to_iterable_dataset(), "training", 3, Reader("text")) == ([], {})
        assert sample_rows({"a": rows}, "training", 3, Reader("text")) == ([], {})
        assert sample_rows(None, "training", 3, Reader("text")) == ([], {})
        own = [{"text": "mine", "label": "x"}]
        assert sample_rows(own, "training", 3, Reader("text"))[0] == [Sample("x", {"text": "mine"})]


def pictures(rows, seed=0, size=(600, 300)):
    """Photographs, each with a place in its EXIF data, that become pixels when they are read."""
    generator = np.random.default_rng(seed)
    encoded = []
    for row in range(rows):
        exif = Image.Exif()
        exif[0x0112], exif[0x010E] = 6, "taken at home"  # turned by a quarter, and a description
        file = io.BytesIO()
        noise = generator.integers(0, 60, (size[1], size[0], 3)) + 40 * (row % NUM_LABELS)
        Image.fromarray(noise.astype(np.uint8)).save(file, format="JPEG", exif=exif)
        encoded.append({"bytes": file.getvalue(), "path": None})
    features = Features({"image": ImageColumn(), "label": ClassLabel(names=list(NAMES_OF_LABELS.values()))})
    return Dataset.from_dict(
        {"image": encoded, "label": [row % NUM_LABELS for row in range(rows)]}, features=features
    ).with_transform(to_pixels)


def to_pixels(batch):
    pixels = PROCESSOR([image.convert("RGB") for image in batch["image"]], return_tensors="pt")
    return {"pixel_values": pixels["pixel_values"], "label": batch["label"]}


PROCESSOR = ViTImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})


def snippets(folder):
    text = (folder / "README.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_snippets(folder, monkeypatch):
    """Run the pipeline and the model snippet as they stand; returns the best answer and the one that they show."""
    monkeypatch.chdir(folder.parent)
    pipeline, model, _ = snippets(folder)
    values = {}
    exec(pipeline.replace("\nclassify(", "\nanswer = classify("), values)
    exec(model, {})
    label, score = re.search(r"^# (.*), (\d\.\d\d)$", pipeline, re.MULTILINE).groups()
    best = max(values["answer"], key=lambda answer: answer["score"])
    return (best["label"], best["score"]), (json.loads(label), pytest.approx(float(score), abs=0.006))


@pytest.fixture(scope="module")
def image_trainer(tiny_config, tmp_path_factory):
    """A trainer after one step, and its folder with a card that shows two rows of each split."""
    output = tmp_path_factory.mktemp("pictures") / "model"
    trainer = build(tiny_config, output, "vit", pictures(8), pictures(8, seed=1), PROCESSOR)
    trainer.train()
    trainer.save_model()
    trainer.create_model_card(samples=2)
    return trainer, output


class TestPictures:
    def test_they_are_small_upright_and_say_nothing_else(self, image_trainer):
        _, output = image_trainer
        names = sorted(path.name for path in output.glob("sample_*"))
        assert names == [f"sample_{part}_{number}.png" for part in ("evaluation", "training") for number in (1, 2)]
        for name in names:
            with Image.open(output / name) as picture:
                assert (picture.format, picture.size) == ("PNG", (128, 256)), "turned as the camera said"
                assert not picture.getexif()
                assert not picture.info
            assert b"taken at home" not in (output / name).read_bytes()

    def test_the_card_shows_them_with_label_and_answer(self, image_trainer):
        _, output = image_trainer
        card = (output / "README.md").read_text(encoding="utf-8")
        for part in ("training", "evaluation"):
            table = card.partition(f"Samples of the {part} rows:")[2].strip().split("\n\n")[0].splitlines()
            for number, label in ((1, "kind 0"), (2, "kind 3")):
                cells = table[1 + number].split(" | ")
                assert f'src="sample_{part}_{number}.png"' in cells[0]
                assert cells[1].strip(" |") == f"`{label}`"
        assert "| Pixels | 600 × 300 | 600 × 300 |" in card
        assert "widget" not in metadata(card), "the widget needs an address on the Hub"

    def test_the_snippets_run_on_the_saved_file(self, image_trainer, monkeypatch):
        got, shown = run_snippets(image_trainer[1], monkeypatch)
        assert got == shown

    def test_on_the_hub_they_have_an_address(self, image_trainer, tmp_path, monkeypatch):
        monkeypatch.setattr(image_trainer[0].args, "hub_model_id", "me/model")
        card, _ = card_of(image_trainer[0], tmp_path, monkeypatch, samples=1)
        assert 'image = Image.open(hf_hub_download("me/model", "sample_evaluation_1.png"))' in card
        address = "https://huggingface.co/me/model/resolve/main/sample_evaluation_1.png"
        assert metadata(card)["widget"] == [{"src": address, "example_title": "Sample 1"}]
        card, _ = card_of(image_trainer[0], tmp_path, monkeypatch, samples=0)
        assert "widget" not in metadata(card)

    def test_no_file_of_an_earlier_card_is_left_and_no_other_is_touched(self, image_trainer, tmp_path, monkeypatch):
        card_of(image_trainer[0], tmp_path, monkeypatch, samples=3)
        (tmp_path / "out" / "sample_mine.png").write_bytes(b"mine")
        card_of(image_trainer[0], tmp_path, monkeypatch, samples=1)
        names = {"sample_mine.png", "sample_training_1.png", "sample_evaluation_1.png"}
        assert {path.name for path in (tmp_path / "out").glob("sample_*")} == names
        card, _ = card_of(image_trainer[0], tmp_path, monkeypatch, samples=0)
        assert [path.name for path in (tmp_path / "out").glob("sample_*")] == ["sample_mine.png"]
        assert 'Image.open("picture.png")  # a file of yours' in card

    def test_facts_that_name_other_files_show_nothing(self, tmp_path):
        """card_facts.json may come from anywhere."""
        (tmp_path / "secret.png").write_bytes(b"")
        samples = [Sample("a", file=name) for name in ("secret.png", "../secret.png", "sample_training_1.png")]
        facts = CardFacts("model", "image", 2, train=SplitFacts(2, samples=samples))
        assert "secret" not in write_card(tmp_path / "model", facts)
        assert "sample_" not in write_card(tmp_path, facts), "its file is not there"
        assert (tmp_path / "secret.png").exists()

    def test_pictures_of_any_kind(self):
        for mode in ("1", "L", "P", "RGBA", "CMYK", "I;16"):
            with Image.open(io.BytesIO(png(Image.new(mode, (10, 1000))))) as picture:
                assert (picture.mode, picture.size) == ("RGB", (3, 256))
        broken = Dataset.from_dict({"image": [{"bytes": b"no picture", "path": None}], "label": [0]})
        assert sample_rows(broken, "training", 1, Reader("image")) == ([], {})
        whole = Image.effect_noise((64, 64), 9)
        file = io.BytesIO()
        whole.save(file, format="PNG")
        cut = [{"image": {"bytes": file.getvalue()[:600], "path": None}, "label": 0}, {"image": whole, "label": 1}]
        samples, files = sample_rows(cut, "training", 2, Reader("image", NAMES_OF_LABELS))
        assert [sample.label for sample in samples] == ["kind 1"]
        assert list(files) == ["sample_training_1.png"]


class TestSounds:
    def test_they_are_saved_and_the_snippets_run_on_them(self, tiny_config, tmp_path, monkeypatch):
        extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE)
        rows = [separable_audio(NUM_LABELS, 8, seed=seed) for seed in (0, 1)]
        output = tmp_path / "sounds"
        trainer = build(tiny_config, output, "wav2vec2", *rows, extractor, lwal_card_samples=2)
        trainer.train()
        trainer.save_model()
        trainer.create_model_card()
        names = sorted(path.name for path in output.glob("sample_*"))
        assert names == [f"sample_{part}_{number}.wav" for part in ("evaluation", "training") for number in (1, 2)]
        card = (output / "README.md").read_text(encoding="utf-8")
        assert '<audio controls src="sample_evaluation_1.wav"></audio>' in card
        assert "| Seconds | 0.05 | 0.05 |" in card
        got, shown = run_snippets(output, monkeypatch)
        assert got == shown
        first = next(row for row in rows[0] if row["labels"] == 0)["input_values"]
        with wave.open(str(output / "sample_training_1.wav")) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
            saved = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
        assert np.corrcoef(saved, first)[0, 1] > 0.999
        assert np.abs(saved).max() == 32767, "louder than a file can hold: turned down, not cut off"

    def test_sounds_of_every_kind_that_data_sets_hold(self):
        wave_of = np.sin(np.arange(10 * RATE) / 9).astype(np.float32) * 0.5
        content = wav(Sound(wave_of, RATE))
        assert read_wav(content).seconds == LONGEST_SECONDS
        np.testing.assert_allclose(read_wav(content).wave, wave_of[: LONGEST_SECONDS * RATE], atol=1e-4)
        short = wave_of[:RATE]
        kinds = [{"array": short, "sampling_rate": RATE}, {"array": np.stack([short, short]), "sampling_rate": RATE}]
        kinds.append({"bytes": wav(Sound(short, RATE)), "path": None})
        for kind in kinds:
            found = sound_of({"label": 1, "audio": kind}, None)
            np.testing.assert_allclose(found.wave, short, atol=1e-4)
            assert found.rate == RATE
        stereo = io.BytesIO()
        with wave.open(stereo, "wb") as writer:
            writer.setparams((2, 2, RATE, 0, "NONE", ""))
            writer.writeframes(np.asarray([[100, 300], [-200, 0]], dtype="<i2").tobytes())
        np.testing.assert_allclose(read_wav(stereo.getvalue()).wave, np.asarray([200, -100]) / 32768)
        unusable = [{"label": 1}, {"audio": {"bytes": b"mp3?", "path": None}}, {"input_values": [0.0, np.nan]}]
        unusable += [{"input_values": ["a"]}, {"input_values": [[0.0], [0.0, 1.0]]}, {"input_values": []}]
        for nothing in unusable:
            assert sound_of(nothing, RATE) is None


class TestCommand:
    def card(self, folder, *words):
        with contextlib.redirect_stdout(None):
            code = main(["card", str(folder), *words])
        return code, (folder / "README.md").read_text(encoding="utf-8")

    def test_samples_are_kept_cut_down_taken_back_and_taken_from_a_file(self, text_trainer, tmp_path, monkeypatch):
        card_of(text_trainer, tmp_path, monkeypatch, samples=3)
        text_trainer.save_model(str(tmp_path / "out"))
        folder = tmp_path / "out"
        before = (folder / "README.md").read_text(encoding="utf-8")
        assert self.card(folder) == (0, before)
        code, text = self.card(folder, "--samples", "1")
        assert (code, text.count("\n| `word") + text.count("\n| `key")) == (0, 2)
        assert len(metadata(text)["widget"]) == 1
        code, text = self.card(folder, "--samples", "0")
        assert (code, re.search(r"key\d|word\d", text)) == (0, None)
        data = Dataset.from_dict(
            {"text": [f"key{i % 4} word1" for i in range(24)], "label": ["dcba"[i % 4] for i in range(24)]}
        )
        data.cast(Features({"text": Value("string"), "label": Value("string")})).to_csv(tmp_path / "rows.csv")
        code, text = self.card(folder, "--samples", "2", "--data", str(tmp_path / "rows.csv"))
        assert code == 0
        for part in ("training", "evaluation"):
            table = text.partition(f"Samples of the {part} rows:")[2].strip().splitlines()
            shown = [[cell.strip("| ") for cell in line.split(" | ")][:2] for line in table[2:4]]
            assert shown == [["`key3 word1`", "`a`"], ["`key0 word1`", "`d`"]], "the names of the file's labels"

    def test_mistakes_are_one_sentence(self, text_trainer, tmp_path, monkeypatch, capsys):
        card_of(text_trainer, tmp_path, monkeypatch)
        text_trainer.save_model(str(tmp_path / "out"))
        assert main(["card", str(tmp_path / "out"), "--samples", "-1"]) == 2
        assert "--samples must be 0 or more, got -1." in capsys.readouterr().err
        assert main(["card", str(tmp_path / "out"), "--samples", "2"]) == 2
        assert "shows no rows yet, so say with --data" in capsys.readouterr().err


def test_rows_of_texts_need_no_pillow(monkeypatch):
    """Installed without extras, the card of a text model ended a training that was done."""
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    assert picture_of({"text": "book me a table", "label": 3}) is None
