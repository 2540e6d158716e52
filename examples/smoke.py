"""Tiny models and data for the examples' `--smoke`: seconds instead of hours, no network, nothing left behind.

Each function returns command-line arguments that point to what it made, so that a smoke run takes the same way through
a script as a real one. Texts are from CLINC150 and pictures from Fashion-MNIST, which travel with hf-lwal; sounds are
sine waves. The models have random weights: their accuracies mean nothing.
"""

import atexit
import tempfile
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import (
    BertConfig,
    BertModel,
    ViTConfig,
    ViTImageProcessor,
    ViTModel,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
    set_seed,
)

from hf_lwal.data import load_embedded

TRANSFORMER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
LOOP = ("--max_steps 4 --per_device_train_batch_size 8 --per_device_eval_batch_size 32 --learning_rate 1e-3").split()
TRAINER = [*LOOP, *"--use_cpu true --report_to none --logging_steps 2 --disable_tqdm true".split()]
INTENTS = ("translate", "definition", "timer", "alarm", "weather", "transfer")
CLOTHES = ("Trouser", "Coat", "Sandal", "Bag")
ROWS = {"train": 16, "validation": 8, "test": 8}
"""Rows per label."""


def folder():
    """A folder that is gone when the process ends; each process has its own, so that none waits for another."""
    made = tempfile.TemporaryDirectory(prefix="smoke-")
    atexit.register(made.cleanup)
    return Path(made.name)


def some_rows(rows, names, per_label):
    """The first rows of every label, sorted by label."""
    labels = np.asarray(rows["label"])
    ids = [rows.features["label"].names.index(name) for name in names]
    return rows.select(np.concatenate([np.flatnonzero(labels == label)[:per_label] for label in ids]))


def texts(split):
    """Requests with intent and domain, as names."""
    rows = some_rows(load_embedded("clinc150")[split], INTENTS, ROWS[split])
    columns = {name: [rows.features[name].int2str(i) for i in rows[name]] for name in ("label", "domain")}
    return Dataset.from_dict({"text": rows["text"][:], **columns})


def pairs(split):
    """Two requests each, and whether they ask for the same."""
    one = texts(split)
    two = one.select(np.random.default_rng(0).permutation(len(one)) if split == "train" else range(len(one))[::-1])
    first = [*one["text"], *one["text"]]
    second = [*one["text"][1:], one["text"][0], *two["text"]]
    intents = zip([*one["label"]] * 2, [*one["label"][1:], one["label"][0], *two["label"]], strict=True)
    same = ["same" if left == right else "different" for left, right in intents]
    return Dataset.from_dict({"premise": first, "hypothesis": second, "label": same})


def sounds(split):
    """Sine waves of four pitches, 0.1 seconds at 4 kHz."""
    generator, labels = np.random.default_rng(len(split)), np.arange(4 * ROWS[split]) % 4
    phase = generator.uniform(0.0, 2.0 * np.pi, (len(labels), 1))
    waves = np.sin(np.arange(400) * (0.1 * 1.6 ** labels[:, None]) + phase)  # (rows, 400)
    audio = [{"array": wave.astype(np.float32), "sampling_rate": 4000} for wave in waves]
    names = [("low", "medium", "high", "shrill")[label] for label in labels]
    return Dataset.from_dict({"audio": audio, "label": names})


def data_folder(make):
    """One parquet file per split, with label columns as datasets on the Hub have them."""
    made = folder()
    for split in ROWS:
        rows = make(split)
        for column in {"label", "domain"} & set(rows.column_names):
            rows = rows.class_encode_column(column)
        rows.to_parquet(made / f"{split}.parquet")
    return made


def text_model():
    """A BERT with a vocabulary of its own, without head, as pretrained ones are on the Hub."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts("train")["text"], trainers.WordLevelTrainer(special_tokens=[*special.values()]))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made = folder()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special).save_pretrained(made)
    set_seed(0)
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, **TRANSFORMER)
    BertModel(config).save_pretrained(made)
    return made


def image_model():
    """A ViT for 28 x 28 pixels in colour."""
    made = folder()
    ViTImageProcessor(size={"height": 28, "width": 28}).save_pretrained(made)
    set_seed(0)
    ViTModel(ViTConfig(image_size=28, patch_size=7, **TRANSFORMER)).save_pretrained(made)
    return made


def audio_model():
    """A wav2vec 2.0 for 4 kHz."""
    made = folder()
    Wav2Vec2FeatureExtractor(sampling_rate=4000, return_attention_mask=True).save_pretrained(made)
    set_seed(0)
    convolutions = {"conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [4, 4], "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    config = Wav2Vec2Config(
        **TRANSFORMER, **convolutions, **positions, feat_extract_norm="layer", classifier_proj_size=16
    )
    Wav2Vec2Model(config).save_pretrained(made)
    return made


def text_files():
    """Arguments for text classification from files: csv, labels by name."""
    made = folder()
    for split in ("train", "validation"):
        texts(split).to_csv(made / f"{split}.csv")
    files = {split: str(made / f"{split}.csv") for split in ("train", "validation")}
    given = ["--train_file", files["train"], "--validation_file", files["validation"]]
    return ["--model_name_or_path", str(text_model()), *given]


def text_arguments(make=texts):
    """Arguments for texts in a folder with splits."""
    return ["--model_name_or_path", str(text_model()), "--dataset", str(data_folder(make))]


def image_arguments():
    """Arguments for pictures in a folder with splits, one folder per label."""
    made = folder()
    splits = load_embedded("fashion_mnist")
    for split in ("train", "test"):
        for number, row in enumerate(some_rows(splits[split], CLOTHES, ROWS[split])):
            path = made / split / splits[split].features["label"].int2str(row["label"]) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            row["image"].save(path)
    return ["--model_name_or_path", str(image_model()), "--dataset", str(made)]


def audio_arguments():
    """Arguments for sounds in a folder with splits."""
    return ["--model_name_or_path", str(audio_model()), "--dataset", str(data_folder(sounds))]


def output():
    """Where a smoke run saves, unless told otherwise."""
    return ["--output_dir", str(folder() / "out")]
