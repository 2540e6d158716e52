"""A folded classifier that pools its tokens as a Sentence Transformers folder, served without hf-lwal."""

from __future__ import annotations

import copy
import json
import subprocess

import pytest
import torch
from test_modeling import LABELS, build, trained
from tiny_models import tiny_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toy import word_tokenizer
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast, T5Config
from warm_python import warm_python

from hf_lwal import AutoModelForLwALClassification
from hf_lwal.cli import main as cli
from hf_lwal.modeling import sentence_export
from hf_lwal.modeling.configuration_pooled import pooled_config
from hf_lwal.modeling.sentence_export import export_sentence_transformer, random_texts, require_sentence_transformers

sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = ["key1 word2", "word3 key2 key2 word4 word5 key7 key9", "key0", " key3 word1 ", "key4 " * 100]
SERVE = """
import sys, torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(1)
for folder in sys.argv[2:]:
    model = SentenceTransformer(folder, device="cpu")
    names = [model[0].config.id2label[number] for number in range(model.get_embedding_dimension())]
    texts = torch.load(sys.argv[1])
    torch.save((names, model.encode(texts, convert_to_tensor=True, batch_size=2)), f"{folder}/found.pt")
assert not [name for name in sys.modules if name.partition(".")[0] == "hf_lwal"]
"""


@pytest.fixture(scope="module")
def folded():
    """``folded(pooling, normalize, name)``: a stock classifier that pools, made once; do not change it."""
    made = {}

    def get(pooling="mean", normalize=False, name="bert"):
        key = (pooling, normalize, name)
        if key not in made:
            model = build(tiny_config, name, pooling=pooling, normalize=normalize, embedding_dim=8)
            model.rename_label("LABEL_1", "answer 1")
            made[key] = trained(model).fold()
        return made[key]

    return get


def logits_of(model, tokenizer, text):
    """One text alone: neither batches nor padding can have a part in it."""
    with torch.no_grad():
        return model(**tokenizer([text], truncation=True, return_tensors="pt")).logits[0]


POOLINGS = [("mean", True), ("mean", False), ("cls", False), ("max", True), ("mean+max", True), ("max+mean", False)]


def test_encode_gives_the_logits_where_nobody_imports_hf_lwal(folded, tokenizer, tmp_path):
    """Modes concatenated in another order, a forgotten scaling or a tanh behind the head give answers just as well."""
    torch.save(TEXTS, tmp_path / "texts.pt")
    folders = [tmp_path / f"{pooling}-{normalize}" for pooling, normalize in POOLINGS]
    for folder, (pooling, normalize) in zip(folders, POOLINGS, strict=True):
        compared = export_sentence_transformer(folded(pooling, normalize), folder, tokenizer, TEXTS)
        assert compared.rows == len(TEXTS) + 1_000 + 2
        assert compared.difference < 1e-5
        kinds = [module["type"].rpartition(".")[2] for module in json.loads((folder / "modules.json").read_text())]
        assert kinds == ["Transformer", "Pooling", *(["Normalize"] if normalize else []), "Dense"]
        assert not any("pooler" in name for name in folder_weights(folder)), "random weights that nothing has trained"
    command = [warm_python(), "-c", SERVE, str(tmp_path / "texts.pt"), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for folder, (pooling, normalize) in zip(folders, POOLINGS, strict=True):
        names, found = torch.load(folder / "found.pt")
        assert names == ["LABEL_0", "answer 1", "LABEL_2", "LABEL_3", "LABEL_4"]
        expected = torch.stack([logits_of(folded(pooling, normalize), tokenizer, text) for text in TEXTS])
        assert len(expected.argmax(1).unique()) > 1
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def folder_weights(folder):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return list(file.keys())


def byte_tokenizer():
    """Spaces before a word are part of its token, and there are no special tokens around a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:56]
    tokenizer = Tokenizer(models.BPE({letter: 4 + place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")


@pytest.mark.parametrize(("name", "pooling"), [("bert", "cls"), ("roberta", "mean+last"), ("llama", "last")])
def test_padding_on_the_left_is_no_text(folded, tokenizer, tmp_path, name, pooling):
    """Without its mask, the first token of a shorter text in a batch would be padding."""
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    model = folded(pooling, True, name)
    assert export_sentence_transformer(model, tmp_path / "left", left, TEXTS).difference < 1e-5
    served = sentence_transformers.SentenceTransformer(str(tmp_path / "left"), device="cpu")
    assert served.tokenizer.padding_side == "left"
    with torch.no_grad():
        expected = model(**left(TEXTS, padding=True, truncation=True, return_tensors="pt")).logits
    found = served.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_text_is_cut_where_the_model_reads_no_more(folded, tmp_path):
    """RoBERTa's table of positions has fewer places than its configuration says, and its tokenizer knows no limit."""
    model, unlimited = folded("mean", True, "roberta"), word_tokenizer()
    unlimited.model_max_length = int(1e30)
    export_sentence_transformer(model, tmp_path / "cut", unlimited)
    served = sentence_transformers.SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    assert served.max_seq_length == 40 - 1
    text = "key1 " + "word2 " * 200
    torch.testing.assert_close(
        served.encode([text], convert_to_tensor=True)[0],
        logits_of(model, word_tokenizer_of_length(39), text),
        rtol=0,
        atol=1e-4,
    )
    assert unlimited.model_max_length == int(1e30)


def word_tokenizer_of_length(length):
    tokenizer = word_tokenizer()
    tokenizer.model_max_length = length
    return tokenizer


def test_an_encoder_without_its_decoder(tokenizer, tmp_path):
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, num_labels=3)
    stock = AutoModelForSequenceClassification.from_config(pooled_config(config, "mean", True))
    assert export_sentence_transformer(stock, tmp_path / "t5", tokenizer, TEXTS).difference < 1e-5


def test_words_that_begin_with_a_space(folded, tmp_path):
    """Stripping texts or adding spaces gives other tokens, and with them other answers."""
    assert export_sentence_transformer(folded(), tmp_path / "bytes", byte_tokenizer(), [" a b", "a b "]).rows >= 1_000


def test_a_chat_template_is_not_put_around_a_text(folded, tokenizer, tmp_path):
    """Sentence Transformers takes a template to be meant for every text; the classifier never saw one."""
    chat = copy.deepcopy(tokenizer)
    chat.chat_template = "{% for message in messages %}key9 {{ message['content'] }}{% endfor %}"
    model = folded("last", True, "llama")
    assert export_sentence_transformer(model, tmp_path / "chat", chat, TEXTS).difference < 1e-5
    served = sentence_transformers.SentenceTransformer(str(tmp_path / "chat"), device="cpu")
    expected = torch.stack([logits_of(model, tokenizer, text) for text in TEXTS])
    torch.testing.assert_close(served.encode(TEXTS, convert_to_tensor=True), expected, rtol=0, atol=1e-4)
    assert served.tokenizer.chat_template == chat.chat_template


def test_half_precision_is_written_in_float32(folded, tokenizer, tmp_path):
    """A head in another precision than the encoder is an error at the first text."""
    model = copy.deepcopy(folded("mean", True)).to(torch.bfloat16)
    assert export_sentence_transformer(model, tmp_path / "half", tokenizer).difference < 1e-5
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    served = sentence_transformers.SentenceTransformer(str(tmp_path / "half"), device="cpu")
    assert {parameter.dtype for parameter in served.parameters()} == {torch.float32}


@pytest.mark.parametrize("moved", [1e-2, 10.0])
def test_another_answer_is_refused(folded, tokenizer, tmp_path, monkeypatch, moved):
    """The logit of a class that training never saw is -10,000: measured by that, any answer would be the same."""
    model = copy.deepcopy(folded())
    with torch.no_grad():
        model.classifier.weight[-1], model.classifier.bias[-1] = 0.0, -1e4
    right = sentence_export._served
    monkeypatch.setattr(sentence_export, "_served", lambda *args: right(*args) + torch.tensor([moved, 0, 0, 0, 0]))
    with pytest.raises(ValueError, match="gives other logits than LwALPooledForSequenceClassification"):
        export_sentence_transformer(model, tmp_path / "other", tokenizer)


def test_random_texts_are_of_the_vocabulary_and_the_same_at_every_run(tokenizer):
    texts, state = random_texts(tokenizer, 1_000), torch.get_rng_state()
    assert texts == random_texts(tokenizer, 1_000)
    assert torch.equal(torch.get_rng_state(), state)
    assert len({word for text in texts for word in text.split()}) == 60, "every word, and no special token"
    assert {len(text.split()) for text in texts} == set(range(8, 17))


def test_refusals(folded, tokenizer, tmp_path, monkeypatch):
    model = build(tiny_config, "bert", pooling="mean")
    with pytest.raises(ValueError, match=r"fold it first, model\.fold\(\)"):
        export_sentence_transformer(model, tmp_path / "new", tokenizer)
    other = AutoModelForSequenceClassification.from_config(tiny_config("bert"))
    with pytest.raises(ValueError, match="BertForSequenceClassification reads its tokens in a way of its own"):
        export_sentence_transformer(other, tmp_path / "new", tokenizer)
    monkeypatch.setattr(sentence_export, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "hf-lwal\[sentence-transformers\]"'):
        require_sentence_transformers()
    assert not (tmp_path / "new").exists()


# -- The command ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for name, options in (("pooled", {"pooling": "mean"}), ("stock", {}), ("bare", {"pooling": "mean"})):
        trained(build(tiny_config, "bert", embedding_dim=8, **options)).save_pretrained(folder / name)
        if name != "bare":
            word_tokenizer().save_pretrained(folder / name)
    return folder


def fold(model, output, *words):
    return cli.main(["fold", str(model), "--output", str(output), "--sentence-transformers", *words])


def test_the_command_writes_one_folder_and_says_how_far_it_is_off(saved, tmp_path, capsys):
    (tmp_path / "rows.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    state = torch.get_rng_state()
    assert fold(saved / "pooled", tmp_path / "new", "--inputs", str(tmp_path / "rows.txt")) == 0
    assert torch.equal(torch.get_rng_state(), state)
    output = capsys.readouterr().out
    assert "compared on 1,005 rows (1,000 random, 5 given)" in output
    assert "at most, on 1,007 texts" in output
    assert "trust_remote_code" not in output
    served = sentence_transformers.SentenceTransformer(str(tmp_path / "new"), device="cpu")
    found = served.encode(TEXTS).argmax(1).tolist()
    model = AutoModelForLwALClassification.from_pretrained(saved / "pooled")
    expected = [best["label"] for (best,) in model.predict([text.strip() for text in TEXTS], word_tokenizer())]
    assert [served[0].config.id2label[number] for number in found] == expected
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["new", "rows.txt"]
    assert {entry.name for entry in (tmp_path / "new").iterdir() if entry.is_dir()} == {"1_Pooling", "2_Dense"}
    start = AutoModelForLwALClassification.from_pretrained(tmp_path / "new")
    assert (start.config.pooling, start.config.num_labels) == ("mean", LABELS)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("stock", [], "BertForSequenceClassification reads its tokens in a way of its own"),
        ("bare", [], "--sentence-transformers needs a tokenizer, but "),
        ("pooled", ["--onnx"], "call the command once with each of them"),
    ],
)
def test_mistakes_are_said_and_leave_no_folder(saved, tmp_path, capsys, name, words, says):
    assert fold(saved / name, tmp_path / "new", *words) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1 or error.strip().splitlines()[-1].startswith("hf-lwal fold: ")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_differs_is_not_given_out(saved, tmp_path, monkeypatch, capsys):
    """Half a folder looks like a model and serves something else."""
    right = sentence_export._served
    monkeypatch.setattr(sentence_export, "_served", lambda *args: right(*args).flip(1))
    assert fold(saved / "pooled", tmp_path / "new") == 2
    assert "gives other logits" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
