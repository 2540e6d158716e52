"""What `.ci/wheel` runs beside an installed wheel: a tiny model of one's own, trained, used and folded by commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast


def command(*words: str) -> str:
    """What a command of the package prints; an error ends the script."""
    print("$ hf-lwal", *words, flush=True)
    return subprocess.run(
        [str(Path(sys.executable).with_name("hf-lwal")), *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def main() -> None:
    """Make data and a model, and use them as README says."""
    words = [f"w{index}" for index in range(20)]
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained("mine")
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    BertForSequenceClassification(config).save_pretrained("mine")
    rows = [
        f"{words[label * 5 + row % 5]} {words[label * 5 + row % 4]},class{label}"
        for row in range(40)
        for label in range(3)
    ]
    Path("data.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")

    print(
        command(
            "train",
            "--model",
            "mine",
            "--data",
            "data.csv",
            "--output-dir",
            "out",
            "--num-train-epochs",
            "3",
            "--use-cpu",
        )
    )
    answer = command("predict", "out", "w1 w2")
    assert "class0" in answer, answer
    command("fold", "out", "--output", "folded")
    assert Path("folded", "config.json").is_file()
    print(command("doctor"))


if __name__ == "__main__":
    main()
