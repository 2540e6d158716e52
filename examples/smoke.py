"""Tiny models and data for the examples' `--smoke`: seconds instead of hours, no network, nothing left behind.

`arguments` gives a command line that points to what was made, so that a smoke run takes the same way through a script
as a real one. Texts are from CLINC150 and pictures from Fashion-MNIST, which travel with hf-lwal; sounds are
sine waves. The models have random weights: their accuracies mean nothing.
"""

import atexit
import tempfile
from pathlib import Path

import datasets
import numpy as np
from datasets import Dataset
from transformers import BertConfig, BertModel, set_seed

from hf_lwal.data import load_embedded

SIZES = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
# With the stock spread of 0.02, made for 768 units, the features of so small a model hardly differ.
TRANSFORMER = {**SIZES, "initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LOOP = [
    *("--max_steps", "4", "--learning_rate", "1e-3"),
    *("--per_device_train_batch_size", "8", "--per_device_eval_batch_size", "32"),
]
TRAINER = ["--use_cpu", "true", "--report_to", "none", "--logging_steps", "2", "--disable_tqdm", "true"]
INTENTS = ("translate", "book_flight", "timer", "weather", "balance", "transfer")
CLOTHES = ("Trouser", "Coat", "Sandal", "Bag")
PITCHES = {"low": 200, "medium": 400, "high": 800, "shrill": 1600}
"""Label and frequency in Hz."""
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
    """Two requests each, and whether they are of the same domain, as about a third of them are."""
    rows = texts(split)
    second = rows.shuffle(seed=0)
    same = np.asarray(rows["domain"]) == np.asarray(second["domain"])
    labels = np.where(same, "same domain", "other").tolist()
    return Dataset.from_dict({"sentence1": rows["text"][:], "sentence2": second["text"][:], "label": labels})


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
    tokenizer.train_from_iterator(
        texts("train")["text"], trainers.WordLevelTrainer(special_tokens=[*special.values()])
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made = folder()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special).save_pretrained(made)
    set_seed(0)
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, **TRANSFORMER)
    BertModel(config).save_pretrained(made)
    return made


def image_model():
    """A ViT for 28 x 28 pixels in colour, without head."""
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    made = folder()
    ViTImageProcessor(size={"height": 28, "width": 28}).save_pretrained(made)
    set_seed(0)
    ViTModel(ViTConfig(image_size=28, patch_size=7, **TRANSFORMER)).save_pretrained(made)
    return made


def image_folder():
    """Pictures in a folder per split and label."""
    made, splits = folder(), load_embedded("fashion_mnist")
    for split in ("train", "test"):
        for number, row in enumerate(some_rows(splits[split], CLOTHES, ROWS[split])):
            path = made / split / splits[split].features["label"].int2str(row["label"]) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            row["image"].save(path)
    return made


def audio_model():
    """A wav2vec 2.0 for 4 kHz, without head."""
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

    made = folder()
    Wav2Vec2FeatureExtractor(sampling_rate=4000, return_attention_mask=True).save_pretrained(made)
    set_seed(0)
    convolutions = {"conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [4, 4], "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    whole = {"layerdrop": 0.0, "mask_time_prob": 0.0}  # without a layer or some frames, few steps end by luck
    widths = {"initializer_range": 0.2, "classifier_proj_size": 64}
    config = Wav2Vec2Config(**SIZES, **convolutions, **positions, **whole, **widths, feat_extract_norm="layer")
    Wav2Vec2Model(config).save_pretrained(made)
    return made


def sound_folder():
    """Tones of an eighth of a second in a folder per split and label, as wave files at 8 kHz."""
    import wave

    made, generator = folder(), np.random.default_rng(0)
    for split, rows in ROWS.items():
        for name, pitch in PITCHES.items():
            (made / split / name).mkdir(parents=True)
            for number in range(rows):
                turns = pitch * np.arange(1000) / 8000 + generator.uniform()
                with wave.open(str(made / split / name / f"{number}.wav"), "wb") as file:
                    file.setparams((1, 2, 8000, 0, "NONE", ""))
                    file.writeframes((20000 * np.sin(2 * np.pi * turns)).astype("<i2").tobytes())
    return made


def text_files():
    """Arguments for two csv files whose labels are names."""
    made = folder()
    given = ["--model_name_or_path", text_model()]
    for split in ("train", "validation"):
        texts(split).to_csv(made / f"{split}.csv")
        given += [f"--{split}_file", made / f"{split}.csv"]
    return given


KINDS = {
    "files": text_files,
    "texts": lambda: ["--model_name_or_path", text_model(), "--dataset", data_folder(texts)],
    "pairs": lambda: ["--model_name_or_path", text_model(), "--dataset", data_folder(pairs)],
    "images": lambda: ["--model_name_or_path", image_model(), "--dataset", image_folder()],
    "sounds": lambda: ["--model_name_or_path", audio_model(), "--dataset", sound_folder()],
}


def places(kind):
    """Command-line arguments that name the model and the data, for scripts that train nothing."""
    datasets.config.HF_DATASETS_CACHE = folder()
    return [str(argument) for argument in KINDS[kind]()]


def arguments(kind, trainer=True):
    """Command-line arguments of a smoke run, to stand before the given ones, which then win.

    Args:
        kind: key of `KINDS`.
        trainer: whether the script takes all of transformers' training arguments.
    """
    loop = [*LOOP, "--output_dir", folder() / "out", *(TRAINER if trainer else [])]
    return [*map(str, loop), *places(kind)]
