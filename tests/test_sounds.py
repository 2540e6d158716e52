"""Sounds come as one wave at the model's rate, from any WAV file, and train a model from folders."""

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from datasets import Audio, Dataset, DatasetInfo, Features, Value
from scipy.io import wavfile
from test_predict_command import sound
from transformers import AutoModelForAudioClassification, Wav2Vec2FeatureExtractor, set_seed

from hf_lwal.cli.main import main
from hf_lwal.cli.train_data import load_rows, prepare_rows
from hf_lwal.modeling.sounds import read_sound

RATE = 4_000
TONE = 0.5 * np.sin(2 * np.pi * 200 * np.arange(RATE // 4) / RATE)


def wav(samples, rate=RATE):
    file = io.BytesIO()
    wavfile.write(file, rate, samples)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["int16", "int32", "uint8", "float32", "float64"])
def test_every_type_of_wav_file_gives_the_same_wave(kind):
    """Whole numbers read as they stand are 32,768 times too loud."""
    if kind == "uint8":
        samples = np.rint(TONE * 127 + 128).astype(np.uint8)
    elif kind.startswith("int"):
        samples = (TONE * np.iinfo(kind).max).astype(kind)
    else:
        samples = TONE.astype(kind)
    assert np.abs(read_sound(wav(samples), RATE) - TONE).max() < 0.01


def test_channels_are_averaged():
    both = np.stack([TONE, np.zeros_like(TONE)], axis=1).astype(np.float32)
    assert np.abs(read_sound(wav(both), RATE) - TONE / 2).max() < 1e-3


@pytest.mark.parametrize("rate", [2_000, 8_000, 11_025])
@pytest.mark.parametrize("form", ["file", "array"])
def test_another_sampling_rate_is_changed(rate, form):
    """A sound taken for one of another rate is another, higher or lower sound."""
    tone = (0.5 * np.sin(2 * np.pi * 200 * np.arange(rate // 4) / rate)).astype(np.float32)
    source = wav(tone, rate) if form == "file" else {"array": tone, "sampling_rate": rate}
    read = read_sound(source, RATE)
    assert abs(len(read) - len(TONE)) <= 2
    middle = slice(200, 800)
    assert np.abs(read[middle] - TONE[middle]).max() < 0.02
    spectrum = np.abs(np.fft.rfft(read))
    assert np.argmax(spectrum) * RATE / len(read) == pytest.approx(200, abs=5)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "the file is empty"), (b"RIFF", None), (wav(TONE.astype(np.float32))[:30], None)]
)
def test_damaged_files_are_a_value_error(content, message):
    with pytest.raises(ValueError, match=message):
        read_sound(content, RATE)


def test_other_kinds_name_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ImportError, match="pip install soundfile"):
        read_sound(b"ID3 and so on", RATE)


@pytest.fixture
def sounds(tmp_path):
    """A folder of sounds per label, at another rate than the model's."""
    for label, pitch in (("low", 200.0), ("high", 900.0)):
        for number in range(6):
            sound(tmp_path / "sounds" / label / f"{number}.wav", rate=8_000, pitch=pitch + number)
    return tmp_path / "sounds"


def test_folders_of_sounds_are_read(sounds):
    """datasets decodes them with a package that is not there, and the Hub was blamed."""
    (sounds / "low" / "bad.wav").write_bytes(b"RIFF nothing")
    rows = load_rows(str(sounds))
    assert (rows.names, rows.columns.kind) == (["high", "low"], "audio")
    assert "1 sound of split 'train' cannot be read and is left out: " in rows.notes[0]
    seen = prepare_rows(rows.train, rows, Wav2Vec2FeatureExtractor(sampling_rate=RATE), None)[0]
    assert len(seen["input_values"]) == pytest.approx(RATE * 0.2, abs=2), "at the model's rate"


def test_a_table_of_sounds_is_read(sounds, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lines = [f"sounds/{label}/{number}.wav,{label}" for label in ("low", "high") for number in range(6)]
    (tmp_path / "list.csv").write_text("\n".join(["clip,label", *lines]), "utf-8")
    assert load_rows(str(tmp_path / "list.csv")).columns.kind == "audio"
    stored = pa.array([{"bytes": path.read_bytes(), "path": None} for path in sorted(sounds.rglob("*.wav"))])
    features = Features({"audio": Audio(), "label": Value("string")})
    table = pa.table({"audio": stored.cast(Audio().pa_type), "label": ["a", "b"] * 6})
    rows = Dataset(table, info=DatasetInfo(features=features))
    rows.to_parquet(tmp_path / "rows.parquet")
    assert load_rows(str(tmp_path / "rows.parquet")).columns.kind == "audio"


def test_a_model_of_sounds_trains_and_answers(sounds, tmp_path, tiny_config, capsys):
    ears, output = tmp_path / "ears", tmp_path / "out"
    set_seed(0)
    AutoModelForAudioClassification.from_config(tiny_config("wav2vec2")).save_pretrained(ears)
    Wav2Vec2FeatureExtractor(sampling_rate=RATE).save_pretrained(ears)
    words = [f"--data={sounds}", f"--model={ears}", f"--output-dir={output}", "--max-steps=2", "--use-cpu=true"]
    assert main(["train", *words, "--per-device-train-batch-size=4"]) == 0
    assert "Data: audio in 'audio', 2 labels" in capsys.readouterr().out
    assert main(["predict", str(output), str(sounds), "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 12
    assert {answer["label"] for answer in answers} <= {"low", "high"}
    assert main(["fold", str(output), "--output", str(tmp_path / "stock"), "--inputs", str(sounds)]) == 0


def test_sounds_without_a_model_ask_for_one(sounds, tmp_path, capsys):
    assert main(["train", f"--data={sounds}", f"--output-dir={tmp_path / 'out'}"]) == 2
    assert "For sounds give a pretrained audio model with --model" in capsys.readouterr().err
    assert main(["quickstart", f"--dataset={sounds}", f"--output-dir={tmp_path / 'quick'}"]) == 2
    assert "holds sounds, which `hf-lwal train` takes" in capsys.readouterr().err
