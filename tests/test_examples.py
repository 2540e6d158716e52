"""The examples run as their opening lines say."""

import json
import runpy
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from launchers import ACCELERATE, launch
from peft import PeftModel
from PIL import Image
from scipy.stats import rankdata
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from tiny_wordnet import write_wordnet
from toy import separable_text
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline, set_seed
from warm_python import warm_python

from hf_lwal import AutoModelForLwALClassification, LwALForSequenceClassification, LwALTrainer
from hf_lwal.cli.main import main as hf_lwal
from hf_lwal.data import load_embedded
from hf_lwal.errors import CommandError
from hf_lwal.metrics import structure_correlation
from hf_lwal.modeling.inference import start_values

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a script in this process; the folder it saves to is given to the test."""

    def run_script(name, *arguments, folder_flag="output_dir"):
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [name, "--smoke", f"--{folder_flag}", str(tmp_path / "out"), *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return tmp_path / "out"

    return run_script


def rows_counted(folder):
    table = json.loads((folder / "label_table.json").read_text(encoding="utf-8"))
    return sum(label["count"] for label in table["labels"])


@pytest.mark.slow
@pytest.mark.parametrize("model", ["convnext", "vit"])
def test_image_classification_from_scratch(model, run, capsys):
    run("image_classification_from_scratch.py", "--model", model, folder_flag="output-dir")
    *_, header, first, second = capsys.readouterr().out.strip().splitlines()
    assert header.split() == ["steps", "one_hot", "lwal"]
    assert [row.split()[0] for row in (first, second)] == ["2", "4"]


def test_text_classification(run):
    """Six labels, so chance is 17 %: the start pass alone must bring a tiny random model above it."""
    folder = run("text_classification.py")
    assert json.loads((folder / "eval_results.json").read_text(encoding="utf-8"))["eval_accuracy"] > 0.3
    assert rows_counted(folder) == 6 * 16 + 4 * 8  # start pass, then four steps of eight rows
    names = set(AutoModelForLwALClassification.from_pretrained(folder).config.label2id)
    assert names == {"translate", "book_flight", "timer", "weather", "balance", "transfer"}
    assert (folder / "README.md").exists()


def test_text_classification_asks_for_data(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["text_classification.py", "--output_dir", str(tmp_path)])
    with pytest.raises(SystemExit, match="--train_file and --validation_file"):
        runpy.run_path(str(EXAMPLES / "text_classification.py"), run_name="__main__")


def test_text_classification_no_trainer(run, capsys):
    """The model counts the rows of its own steps, the last one's when it is evaluated."""
    folder = run("text_classification_no_trainer.py")
    assert rows_counted(folder) == 6 * 16 + 4 * 8
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy"))
    assert float(said.split()[1]) > 0.3
    assert said.endswith("48 rows, 1 process(es)")


@pytest.mark.slow
def test_text_classification_no_trainer_in_two_processes(tmp_path):
    """Both processes' rows must reach the label table, and both must stop at the same step."""
    script = EXAMPLES / "text_classification_no_trainer.py"
    said = launch(ACCELERATE, script, "--smoke", "--output_dir", str(tmp_path), timeout=120)
    assert "48 rows, 2 process(es)" in said
    assert rows_counted(tmp_path) == 6 * 16 + 4 * 2 * 8


# -- pictures, sounds, pairs, adapters ------------------------------------------------------------------------------

INTENTS = ("translate", "book_flight", "timer", "weather", "balance", "transfer")
CLOTHES = {"Bag", "Coat", "Sandal", "Trouser"}


def accuracy_of(folder):
    return json.loads((folder / "eval_results.json").read_text(encoding="utf-8"))["eval_accuracy"]


def test_image_classification(run, caplog):
    folder = run("image_classification.py", "--save_strategy", "steps", "--save_steps", "2")
    assert accuracy_of(folder) > 0.3  # chance is 0.25
    assert rows_counted(folder) == 4 * 16 + 4 * 8
    assert "image-classification" in (folder / "README.md").read_text(encoding="utf-8")
    assert set(AutoModelForLwALClassification.from_pretrained(folder).config.label2id) == CLOTHES
    picture = load_embedded("fashion_mnist")["test"][0]["image"].convert("RGB")
    answers = pipeline("image-classification", model=str(folder), top_k=4)(picture)
    assert {answer["label"] for answer in answers} == CLOTHES

    (folder / "label_table.json").unlink()
    run("image_classification.py", "--resume_from_checkpoint", str(folder / "checkpoint-2"))
    assert rows_counted(folder) == 4 * 16 + 4 * 8  # no second start pass, and two steps more
    assert "missing keys" not in caplog.text


@pytest.mark.slow
def test_image_classification_of_one_folder(tmp_path):
    """In a process of its own, as people start it; without a test folder, a share of every label is set apart."""
    rows = load_embedded("fashion_mnist")["train"]
    for number, row in enumerate(rows.select(range(120))):
        label = rows.features["label"].int2str(row["label"]).replace("/", " or ")
        path = tmp_path / "pictures" / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        row["image"].save(path)
    given = ["--smoke", "--dataset", str(tmp_path / "pictures"), "--validation_share", "0.25"]
    command = [
        warm_python(),
        str(EXAMPLES / "image_classification.py"),
        *given,
        "--output_dir",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.0 < accuracy_of(tmp_path / "out") < 1.0
    labels = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert set(AutoModelForLwALClassification.from_pretrained(tmp_path / "out").config.label2id) == labels


def test_image_classification_no_trainer(run, capsys):
    folder = run("image_classification_no_trainer.py")
    assert rows_counted(folder) == 4 * 16 + 4 * 8
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy")]
    assert said[0].endswith("before the first step")
    assert float(said[1].split()[1]) > 0.3
    assert said[1].endswith("32 rows, 1 process(es)")
    assert (folder / "preprocessor_config.json").exists()


@pytest.mark.slow
def test_image_classification_no_trainer_in_two_processes(tmp_path):
    """Both processes' rows must reach the label table."""
    script = EXAMPLES / "image_classification_no_trainer.py"
    said = launch(ACCELERATE, script, "--smoke", "--output_dir", str(tmp_path), timeout=120)
    assert "32 rows, 2 process(es)" in said
    assert rows_counted(tmp_path) == 4 * 16 + 4 * 2 * 8


def write_tone(path, rate, hertz, channels=1, width=2, seconds=0.125):
    """A wave file of a tone of half the largest loudness, in the last channel alone."""
    samples = np.zeros((int(rate * seconds), channels))
    samples[:, -1] = 0.5 * np.sin(2 * np.pi * hertz * np.arange(len(samples)) / rate)
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        values = samples * 2**15 if width == 2 else samples * 2**7 + 128
        file.writeframes(values.astype("<i2" if width == 2 else "u1").tobytes())


def test_audio_classification(run, tmp_path):
    """Sounds shorter and longer than the part that is taken, at another rate than the model's."""
    folder = run("audio_classification.py", "--max_length_seconds", "0.1")
    assert accuracy_of(folder) > 0.9
    assert rows_counted(folder) == 4 * 16 + 4 * 8
    assert "audio-classification" in (folder / "README.md").read_text(encoding="utf-8")
    tones = {"low": 200, "medium": 400, "high": 800, "shrill": 1600}
    for name, hertz in tones.items():
        write_tone(tmp_path / "one" / name / "a.wav", 4000, hertz, seconds=0.05)
        write_tone(tmp_path / "one" / name / "b.wav", 8000, hertz, seconds=0.3)
    again = ["--dataset", str(tmp_path / "one"), "--validation_share", "0.5", "--max_steps", "1"]
    assert 0.0 <= accuracy_of(run("audio_classification.py", *again, "--per_device_train_batch_size", "4")) <= 1.0
    assert set(AutoModelForLwALClassification.from_pretrained(folder).config.label2id) == set(tones)


@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (8000, 2), (44100, 1)])
def test_sounds_are_decoded_at_the_models_rate(tmp_path, rate, channels):
    """A wrong rate or a mixed-up order of channels would shift every pitch, and training would not notice."""
    decode = runpy.run_path(str(EXAMPLES / "audio_classification.py"))["decode"]
    write_tone(tmp_path / "tone.wav", rate, 440, channels)
    expected = 0.5 / channels * np.sin(2 * np.pi * 440 * np.arange(2000) / 16000)
    for sound in (
        {"path": str(tmp_path / "tone.wav"), "bytes": None},
        {"path": "tone.wav", "bytes": (tmp_path / "tone.wav").read_bytes()},
    ):
        found = decode(sound, 16000)
        assert found.dtype == np.float32
        assert abs(len(found) - 2000) <= 1
        assert np.abs(found[100:1900] - expected[100:1900]).max() < 0.01  # the ends ring


def test_sounds_that_need_soundfile(tmp_path, monkeypatch):
    script = runpy.run_path(str(EXAMPLES / "audio_classification.py"))
    monkeypatch.setitem(script["decode"].__globals__, "find_spec", lambda name: None)
    (tmp_path / "song.mp3").write_bytes(b"ID3" + bytes(100))
    write_tone(tmp_path / "old.wav", 8000, 440, width=1)
    for name, reason in (("song.mp3", "does not start with RIFF"), ("old.wav", "8 bits")):
        path = str(tmp_path / name)
        with pytest.raises(SystemExit, match=f"{name} is no wave file with 16 bits.*{reason}.*pip install soundfile"):
            script["decode"]({"path": path, "bytes": None}, 16000)


def write_pairs(folder):
    """Own files, with unusual names of columns and a test split without labels."""
    texts = load_embedded("clinc150")["test"]["text"][::75]
    pairs = pd.DataFrame({"ask": texts, "reply": texts[::-1]})
    folder.mkdir()
    pairs.to_csv(folder / "test.csv", index=False)
    for split in ("train", "validation"):
        pairs.assign(kind=["often", "often", "rare"] * 20).to_csv(folder / f"{split}.csv", index=False)
    return pairs


def write_one_text(folder):
    folder.mkdir()
    pd.DataFrame({"text": ["a", "b"], "kind": ["c", "d"]}).to_csv(folder / "train.csv", index=False)
    return folder


def test_sentence_pairs(run, capsys):
    """The file of predictions must be in the order of the test rows, and its numbers those of the saved model."""
    folder = run("sentence_pairs.py")
    assert {"eval_accuracy", "eval_f1_macro"} <= json.loads((folder / "eval_results.json").read_text()).keys()
    assert rows_counted(folder) == 2 * 16 + 4 * 8
    table = pd.read_csv(folder / "predictions.csv")
    assert list(table["sentence1"]) == [text for name in INTENTS for text in texts_of(name)[:8]]
    chances = table[["probability of other", "probability of same domain"]].to_numpy()
    assert chances.sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert list(table["prediction"]) == [("other", "same domain")[i] for i in chances.argmax(axis=1)]
    classify = pipeline("text-classification", model=str(folder), top_k=2)
    for row in (0, 17, 47):
        pair = {"text": table["sentence1"][row], "text_pair": table["sentence2"][row]}
        scores = {answer["label"]: answer["score"] for answer in classify(pair)}
        assert [scores["other"], scores["same domain"]] == pytest.approx(chances[row], abs=1e-4)
    assert "text_pair" in capsys.readouterr().out.splitlines()[-1]


def test_sentence_pairs_of_own_files(run, tmp_path):
    pairs = write_pairs(tmp_path / "data")
    own = ("--dataset", str(tmp_path / "data"), "--label_column", "kind")
    table = pd.read_csv(run("sentence_pairs.py", *own, "--columns", "reply", "ask") / "predictions.csv")
    assert list(table.columns[:3]) == ["reply", "ask", "prediction"]
    assert list(table["reply"]) == list(pairs["reply"])
    assert set(table["prediction"]) <= {"often", "rare"}
    with pytest.raises(CommandError, match=r"ask, reply"):
        run("sentence_pairs.py", *own)
    with pytest.raises(SystemExit, match="Name them with --columns: text, kind"):
        run("sentence_pairs.py", *own, "--dataset", str(write_one_text(tmp_path / "one")))


def test_lora(run, capsys):
    """The label table and the head must come with the adapter, onto a base whose own head is another."""
    folder = run("lora.py")
    assert capsys.readouterr().out.count("the label of 48 of 48 texts is that of the trained model") == 2
    assert accuracy_of(folder) > 0.3
    assert rows_counted(folder) == 6 * 16 + 4 * 8
    base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    merged = AutoModelForLwALClassification.from_pretrained(folder / "merged").eval()
    batch = tokenizer(texts_of("weather") + texts_of("timer"), padding=True, return_tensors="pt")
    for seed in (7, 8):
        set_seed(seed)
        fresh = AutoModelForLwALClassification.from_pretrained(base, id2label=merged.config.id2label, task="text")
        alone = fresh.eval()(**batch).logits
        loaded = PeftModel.from_pretrained(fresh, folder).eval()
        assert torch.allclose(loaded(**batch).logits, merged(**batch).logits, atol=1e-5)
        assert not torch.allclose(alone, merged(**batch).logits, atol=0.1)
    assert not (folder / "model.safetensors").exists()


# -- search, new labels, unknown texts, hierarchy -------------------------------------------------------------------


def is_picture(path):
    """A PNG that opens and shows something."""
    with Image.open(path) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
        return image.format == "PNG" and min(image.size) > 300 and len(colours) > 10


def texts_of(label, split="test"):
    rows = load_embedded("clinc150")[split]
    wanted = rows.features["label"].str2int(label)
    return [row["text"] for row in rows if row["label"] == wanted]


def test_hyperparameter_search(run, monkeypatch, tmp_path):
    """The table says what each trial really trained with, and the best settings train from the command line."""
    trained, start_labels = [], LwALTrainer.start_labels

    def spy(trainer):
        knobs, core = [np.nan] * 3, trainer.core_model
        if isinstance(core, LwALForSequenceClassification):
            knobs = [core.config.memory, core.config.refresh_every, core.config.repel_weight]
        trained.append([trainer.optimizer.param_groups[0]["initial_lr"], *knobs])
        return start_labels(trainer)

    monkeypatch.setattr(LwALTrainer, "start_labels", spy)
    folder = run("hyperparameter_search.py", "--seed", "8")  # whose four trials are of both methods
    trials = pd.read_csv(folder / "trials.csv", float_precision="round_trip")
    columns = ["learning_rate", "lwal_memory", "lwal_refresh_every", "lwal_repel_weight"]
    said = trials[[f"params_{column}" for column in columns]].to_numpy()
    np.testing.assert_array_equal(said, np.asarray(trained))
    assert sorted(trials["params_label_method"]) == ["lwal", "lwal", "lwal", "one_hot"]
    assert len(np.unique(said, axis=0)) == 4
    assert is_picture(folder / "history.png")

    best = yaml.safe_load((folder / "best.yaml").read_text(encoding="utf-8"))
    winner = trials.loc[trials["value"].idxmax()]
    assert best["learning_rate"] == winner["params_learning_rate"]
    assert hf_lwal(["train", str(folder / "best.yaml"), "--output-dir", str(tmp_path / "best"), "--use-cpu"]) == 0
    assert trained[-1][0] == best["learning_rate"]
    assert trained[-1][1:] == [best.get(column, np.nan) for column in columns[1:]] or best["label_method"] == "one_hot"


WHITENED = ("--lwal_initial_head", "whitened")
"""What is fitted to the features of a tiny random model says little of a label that it has not seen."""


def test_few_shot_label(run, capsys):
    """A label that training has not seen is predicted from its examples, by what is loaded again as well."""
    folder = run("few_shot_label.py", "--new_labels", "weather", "--max_steps", "40", *WHITENED)
    lines = capsys.readouterr().out.splitlines()
    (before, after) = (line.split()[-2:] for line in lines if line.startswith(("5 labels", "5 examples each")))
    assert float(before[0]) == 0.0
    assert float(after[0]) > 30.0  # by chance 17
    assert float(before[1]) > 50.0
    assert float(after[1]) > float(before[1]) - 20.0
    assert rows_counted(folder) == 5 * 16 + 40 * 8 + 5  # start pass, steps, examples
    classify = pipeline("text-classification", model=str(folder))
    found = [answer["label"] for answer in classify(texts_of("weather", "test"))]
    assert found.count("weather") > 0.3 * len(found)  # thirty rows, where the example measured eight
    # Of its own examples; a label at their mean and no nearer would be given four of them, and rows of others with it.
    assert [answer["label"] for answer in classify(texts_of("weather", "train")[:5])].count("weather") >= 3


def auroc(scores, unknown):
    """Percent, from ranks (Mann and Whitney)."""
    ranks, wanted = rankdata(scores), int(unknown.sum())
    return 100 * (ranks[unknown].sum() - wanted * (wanted + 1) / 2) / (wanted * int((~unknown).sum()))


def test_open_set(run, capsys, tmp_path):
    """What is printed is what the table of predictions gives; an unknown text must not count as a known label's."""
    stories = [text for label in ("tell_joke", "meaning_of_life") for text in texts_of(label)]
    pd.DataFrame({"text": stories}).to_csv(tmp_path / "unknown.csv", index=False)
    folder = run("open_set.py", "--control", "--unknown_file", str(tmp_path / "unknown.csv"))
    lines = capsys.readouterr().out.splitlines()
    table = pd.read_csv(folder / "predictions.csv")
    unknown = (table["truth"] == "unknown").to_numpy()
    assert list(table["text"][unknown]) == stories
    for title, column in (("adaptive labels", "rejection_score"), ("control", "control_score")):
        said = next(line for line in lines if line.startswith(title)).split()
        assert float(said[-2]) == pytest.approx(auroc(table[column], unknown), abs=0.051)
    assert ((table["label"] == "unknown") == (table["rejection_score"] > 1.0)).all()
    assert table["control_score"].between(0.0, 1.0).all()
    assert is_picture(folder / "scores.png")
    assert (AutoModelForLwALClassification.from_pretrained(folder).label_table.rejection_radii > 0).all()


@pytest.mark.slow
def test_open_set_with_labels_left_out(tmp_path):
    """In a process of its own, as people start it."""
    command = [warm_python(), str(EXAMPLES / "open_set.py"), "--smoke", "--output_dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "predictions.csv")
    assert set(table["truth"]) == {"book_flight", "timer", "transfer", "translate", "weather", "unknown"}
    assert set(table["nearest"]) <= set(table["truth"]) - {"unknown"}
    assert "8 unknown texts" in done.stdout


def test_class_incremental(run, capsys):
    """Group after group must end at the classifier that linear discriminant analysis makes of all rows at once."""
    folder = run("class_incremental.py", "--shrinkage", "0.2")
    lines = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("banking", "travel", "utility"))
    ]
    assert [int(line.split()[1]) for line in lines] == [2, 4, 6]
    model, tokenizer = AutoModelForLwALClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    names = sorted(DOMAINS)
    assert sorted(model.config.label_names.values()) == names
    rows = {
        split: [(text, name) for name in names for text in texts_of(name, split)[:count]]
        for split, count in (("train", 16), ("test", 8))
    }
    features = {
        split: start_values(model, [text for text, _ in part], tokenizer, 64).numpy() for split, part in rows.items()
    }
    lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.2, priors=[1 / 6] * 6)
    lda.fit(features["train"], [name for _, name in rows["train"]])
    answers = [answer[0]["label"] for answer in model.predict([text for text, _ in rows["test"]], tokenizer)]
    assert answers == lda.predict(features["test"]).tolist()
    right = np.mean([answer == name for answer, (_, name) in zip(answers, rows["test"], strict=True)])
    assert float(lines[-1].split()[-1]) == pytest.approx(100 * right, abs=0.051)
    assert right > 1 / 3


DOMAINS = {"balance": 0, "book_flight": 1, "timer": 2, "transfer": 0, "translate": 1, "weather": 2}
"""Two labels of each; in the order of the data set's labels."""


def test_label_hierarchy(run, capsys):
    """The figures are those of the models that were saved, compared with the domains of the intents."""
    folder = run("label_hierarchy.py")
    said = dict(
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("lwal ", "control "))
    )
    model = AutoModelForLwALClassification.from_pretrained(folder / "lwal")
    assert list(model.config.label_names.values()) == list(DOMAINS)
    vectors = model.label_table.label_vectors.detach().double()
    domains = np.asarray(list(DOMAINS.values()))
    apart = (domains[:, None] != domains).astype(float)
    assert float(said["lwal"]) == pytest.approx(structure_correlation(torch.cdist(vectors, vectors), apart), abs=6e-4)
    assert -1.0 <= float(said["control"]) <= 1.0
    assert said["control"] != said["lwal"]
    assert type(AutoModelForSequenceClassification.from_pretrained(folder / "control")).__name__.startswith("Bert")
    assert all(is_picture(folder / f"{name}.png") for name in ("dendrogram", "distances", "map"))


def test_label_hierarchy_of_a_trained_model(run, capsys, tiny_config, tmp_path):
    names = ["cat", "dog", "spider_monkey", "tool", "seal"]
    model = AutoModelForLwALClassification.from_config(tiny_config("bert", id2label=dict(enumerate(names))))
    model.initialize_labels([separable_text(5, 40).with_format("torch")[:]], progress=False)
    model.save_pretrained(tmp_path / "model")
    wordnet = write_wordnet(tmp_path / "wordnet")
    folder = run("label_hierarchy.py", "--model", str(tmp_path / "model"), "--wordnet", str(wordnet))
    header, line = capsys.readouterr().out.strip().splitlines()[-2:]
    assert header.startswith("structure correlation, at most")
    assert -1.0 <= float(line.split()[-1]) <= 1.0
    assert is_picture(folder / "dendrogram.png")
