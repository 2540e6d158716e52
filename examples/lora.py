"""Train a LoRA adapter whose files carry the label table, load it onto a fresh base, and merge it.

    python examples/lora.py --dataset clinc150 --output_dir adapter                       # BERT
    python examples/lora.py --dataset my-folder --model_name_or_path my-model --target_modules q_proj v_proj \
        --output_dir adapter
    python examples/lora.py --smoke        # 4 steps of a tiny model, about 10 seconds

Needs peft. The data set has splits "train" and "test" or "validation", and columns "text" and "label"; clinc150
comes with hf-lwal. All of LwALTrainingArguments can be given.

`modules_to_save=model.peft_modules_to_save()` is what an adapter for adaptive labels needs: it names the label table
and the layers behind the backbone, which start at random. Merged weights are saved to adapter/merged.

Time: that of the same adapter on the stock model, and before the first step one forward pass over 16 rows per label.
Departs from the paper, which trains all weights: the backbone stays as it is but for the adapter.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN_TARGETS
from transformers import AutoTokenizer, HfArgumentParser, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.data.sources import encode_labels, evaluation_split, find_columns, load_splits

DEFAULTS = {"learning_rate": 5e-4, "per_device_train_batch_size": 32, "warmup_steps": 0.1, "eval_strategy": "epoch"}


@dataclass
class Arguments:
    dataset: str = field(default="clinc150", metadata={"help": "clinc150, a file or folder, or a Hub name"})
    model_name_or_path: str = field(default="google-bert/bert-base-uncased", metadata={"help": "Hub name or folder"})
    rank: int = field(default=8, metadata={"help": "of the adapter"})
    target_modules: list[str] = field(
        default_factory=list, metadata={"help": "names of linear layers to adapt; default: what PEFT knows to be good"}
    )
    smoke: bool = field(default=False, metadata={"help": "tiny model and data, 4 steps, no network"})


def mebibytes(folder):
    """Size of the weights in a folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 2**20


def main():
    if "--smoke" in sys.argv:
        import smoke

        sys.argv[1:1] = smoke.arguments("texts")
    parser = HfArgumentParser((Arguments, LwALTrainingArguments))
    parser.set_defaults(**DEFAULTS)
    options, args = parser.parse_args_into_dataclasses()
    splits = load_splits(options.dataset)
    columns = find_columns(splits["train"].features)
    splits = encode_labels(splits, columns.label)
    names = splits["train"].features["label"].names
    tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)

    def base(seed):
        """The backbone, with a head and a label table that start anew."""
        set_seed(seed)
        return AutoModelForLwALClassification.from_pretrained(
            options.model_name_or_path, id2label=dict(enumerate(names)), task="text"
        )

    def tokenize(batch):
        return tokenizer(batch[columns.input], truncation=True, max_length=128)

    train, test = (rows.map(tokenize, batched=True) for rows in (splits["train"], evaluation_split(splits)))
    model = base(args.seed)
    targets = options.target_modules or KNOWN_TARGETS[model.config.encoder_config.model_type]
    adapter = LoraConfig(
        r=options.rank,
        lora_alpha=2 * options.rank,
        lora_dropout=0.05,
        target_modules=targets,
        modules_to_save=model.peft_modules_to_save(),
    )
    model = get_peft_model(model, adapter)
    model.print_trainable_parameters()
    trainer = LwALTrainer(model, args, train_dataset=train, eval_dataset=test, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_metrics("eval", trainer.evaluate())
    trainer.save_model()
    if not trainer.is_world_process_zero():
        return

    texts = test[columns.input][:256]
    loaded = PeftModel.from_pretrained(base(args.seed + 1), args.output_dir)
    answers = {"trained": model.predict(texts, tokenizer), "adapter loaded": loaded.predict(texts, tokenizer)}
    merged = Path(args.output_dir, "merged")
    loaded.merge_and_unload().save_pretrained(merged)
    tokenizer.save_pretrained(merged)
    answers["merged"] = AutoModelForLwALClassification.from_pretrained(merged).predict(texts, tokenizer)
    labels = {title: [best[0]["label"] for best in rows] for title, rows in answers.items()}
    for title in ("adapter loaded", "merged"):
        same = sum(a == b for a, b in zip(labels[title], labels["trained"], strict=True))
        print(f"{title}: the label of {same} of {len(texts)} texts is that of the trained model")
    print(f"adapter {mebibytes(Path(args.output_dir)):.1f} MiB, merged {mebibytes(merged):.1f} MiB")


if __name__ == "__main__":
    main()
