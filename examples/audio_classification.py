"""Fine-tune an audio classifier with adaptive labels, on a folder of sounds per label or a data set of the Hub.

    python examples/audio_classification.py --dataset my-sounds --model_name_or_path facebook/wav2vec2-base \
        --output_dir out
    python examples/audio_classification.py --dataset superb/superb:ks --output_dir out --max_length_seconds 1
    python examples/audio_classification.py --smoke        # 4 steps of a tiny model, about 10 seconds

my-sounds has one folder per label, perhaps inside folders train and test. Wave files need nothing else; soundfile
(`pip install soundfile`) reads others. Models that read waves (wav2vec 2.0, HuBERT, WavLM) and models that read
spectrograms (AST) work alike, since their feature extractor makes the inputs. All of LwALTrainingArguments can be
given, for example `--resume_from_checkpoint true`.

Time: that of transformers' run_audio_classification.py, and before the first step one forward pass over 16 rows per
label. Departs from the paper, which has no sounds: this library's default preset instead of Algorithm 1 to the
letter.
"""

import io
import sys
import wave
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import gcd
from pathlib import Path

import numpy as np
from datasets import Audio, Dataset, DatasetDict
from scipy.signal import resample_poly
from transformers import AutoFeatureExtractor, HfArgumentParser, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.sources import EVALUATION_SPLITS, encode_labels, evaluation_split, find_columns, load_splits

DEFAULTS = {"learning_rate": 3e-5, "per_device_train_batch_size": 32, "warmup_steps": 0.1, "eval_strategy": "epoch"}


@dataclass
class Arguments:
    dataset: str = field(metadata={"help": "folder or Hub name"})
    model_name_or_path: str = field(
        default="facebook/wav2vec2-base", metadata={"help": "any audio backbone: Hub name or folder"}
    )
    max_length_seconds: float = field(default=10.0, metadata={"help": "of longer sounds a part is taken"})
    validation_share: float = field(default=0.1, metadata={"help": "of the rows, where there is only a train split"})
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def list_files(folder):
    """Splits of a folder of sounds; the "audiofolder" of datasets needs torchcodec even to list the files."""
    found = [name for name in ("train", *EVALUATION_SPLITS) if (folder / name).is_dir()]
    splits = DatasetDict()
    for name, place in [(name, folder / name) for name in found] or [("train", folder)]:
        files = sorted(path for path in place.glob("*/*") if path.is_file())
        names = [path.parent.name for path in files]
        splits[name] = Dataset.from_dict({"audio": [str(path) for path in files], "label": names})
    return splits.cast_column("audio", Audio(decode=False))


def load(options, seed):
    """Training and evaluation rows with a "label", and the column with undecoded sounds."""
    folder = Path(options.dataset)
    listed = folder.is_dir() and not any(folder.glob("*.parquet"))
    splits = list_files(folder) if listed else load_splits(options.dataset)
    column = next((name for name, kind in splits["train"].features.items() if isinstance(kind, Audio)), None)
    if column is None:
        raise SystemExit(f"{options.dataset} has no column with sounds, only {', '.join(splits['train'].features)}.")
    splits = splits.cast_column(column, Audio(decode=False))
    splits = encode_labels(splits, find_columns(splits["train"].features, column).label)
    if len(splits) == 1:
        splits = splits["train"].train_test_split(options.validation_share, stratify_by_column="label", seed=seed)
    return splits["train"], evaluation_split(splits), column


def decode(sound, rate):
    """A sound as one channel (samples,) float32 in -1…1 at the model's rate."""
    file = io.BytesIO(sound["bytes"]) if sound["bytes"] else sound["path"]
    if find_spec("soundfile") is not None:
        import soundfile

        samples, own_rate = soundfile.read(file, dtype="float32", always_2d=True)  # (samples, channels)
    else:
        samples, own_rate = read_wave(file, sound["path"])
    up, down = rate // gcd(rate, own_rate), own_rate // gcd(rate, own_rate)
    return resample_poly(samples.mean(axis=1), up, down).astype(np.float32)


def read_wave(file, name):
    """Samples (samples, channels) of a wave file with 16 bits, and their rate."""
    try:
        with wave.open(file) as opened:
            if opened.getsampwidth() != 2:
                raise wave.Error(f"{8 * opened.getsampwidth()} bits")
            values = np.frombuffer(opened.readframes(opened.getnframes()), "<i2").astype(np.float32)
            return values.reshape(-1, opened.getnchannels()) / 2**15, opened.getframerate()
    except (wave.Error, EOFError) as error:
        raise SystemExit(
            f"{name} is no wave file with 16 bits ({error}): pip install soundfile, which reads others."
        ) from error


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("sounds")
    parser = HfArgumentParser((Arguments, LwALTrainingArguments))
    parser.set_defaults(remove_unused_columns=False, **DEFAULTS)  # inputs are made when a row is read
    options, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    train, evaluation, column = load(options, args.seed)
    extractor = AutoFeatureExtractor.from_pretrained(options.model_name_or_path)
    rate, longest = extractor.sampling_rate, int(options.max_length_seconds * extractor.sampling_rate)
    model = AutoModelForLwALClassification.from_pretrained(
        options.model_name_or_path, id2label=dict(enumerate(train.features["label"].names)), task="audio"
    )

    def reads(rows, start_of):
        def read(batch):
            waves = [decode(sound, rate) for sound in batch[column]]
            starts = [start_of(max(0, len(wave) - longest)) for wave in waves]
            parts = [wave[start : start + longest] for wave, start in zip(waves, starts, strict=True)]
            return {**extractor(parts, sampling_rate=rate), "label": batch["label"]}

        return rows.with_transform(read)

    train = reads(train, lambda spare: np.random.randint(spare + 1))
    evaluation = reads(evaluation, lambda spare: spare // 2)  # the middle
    trainer = LwALTrainer(model, args, train_dataset=train, eval_dataset=evaluation, processing_class=extractor)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_model()
    card = {"finetuned_from": options.model_name_or_path, "tasks": "audio-classification"}
    card["dataset"] = None if Path(options.dataset).exists() else options.dataset
    _ = trainer.push_to_hub(**card) if args.push_to_hub else trainer.create_model_card(**card)


if __name__ == "__main__":
    main()
