"""Adapters of PEFT: the label table and the head go with them, through training, files, merging and resuming."""

import json
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from releases import TRANSFORMERS
from safetensors.torch import load_file
from swap_data import backbone
from tiny_models import TINY_CONFIGS
from toy import separable_images, separable_text
from transformers import AutoModel, AutoModelForSequenceClassification, configuration_utils, set_seed

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments
from hf_lwal.modeling.modeling_lwal import LwALForSequenceClassification
from hf_lwal.modeling.peft_support import check_adapter
from hf_lwal.settings import apply_settings

peft = pytest.importorskip("peft")

LABELS = 5
ROWS = {
    "text": (separable_text(LABELS, 320, 0), separable_text(LABELS, 100, 1)),
    "image": (separable_images(LABELS, 320, 0), separable_images(LABELS, 100, 1)),
}
VIT = ["q_proj", "v_proj"] if Version("5.10") <= TRANSFORMERS else ["query", "value"]
TARGETS = {
    "bert": ["query", "value"],
    "roberta": ["query", "value"],
    "deberta_v2": ["query_proj", "value_proj"],
    "vit": VIT,
    "resnet": ["convolution"],
}
SAVED = {
    "bert": ["classifier"],
    "distilbert": ["pre_classifier", "classifier"],
    "roberta": ["classifier"],
    "deberta_v2": ["pooler", "classifier"],
    "modernbert": ["head", "classifier"],
    "llama": ["score"],
    "vit": ["classifier"],
    "convnext": ["classifier"],
    "wav2vec2": ["projector", "classifier"],
}


@pytest.fixture(scope="module")
def backbones(tiny_config, tmp_path_factory):
    """Folder of a saved backbone by name, as a Hub checkpoint would be: without head and table."""
    folders: dict[str, Path] = {}

    def folder(name):
        if name not in folders:
            set_seed(0)
            model = AutoModelForLwALClassification.from_config(tiny_config(name, num_labels=LABELS)).encoder
            folders[name] = tmp_path_factory.mktemp(name)
            getattr(model, model.base_model_prefix).save_pretrained(folders[name])
        return folders[name]

    return folder


@pytest.fixture
def base(backbones):
    """``base(name, seed)``: an LwAL model on that backbone; another seed gives another head."""

    def load(name="bert", seed=0, **options):
        folder = backbones(name)  # making it draws random numbers, so that the first head would differ from later ones
        set_seed(seed)
        return AutoModelForLwALClassification.from_pretrained(folder, num_labels=LABELS, **options)

    return load


def adapted(model, name="bert", **options):
    """The model with a LoRA adapter that saves what it must, unless ``options`` say otherwise."""
    defaults = {
        "r": 4,
        "lora_dropout": 0.1,
        "target_modules": TARGETS[name],
        "modules_to_save": model.peft_modules_to_save(),
    }
    return peft.get_peft_model(model, peft.LoraConfig(**{**defaults, **options}))


def trainer_of(model, folder, **options):
    defaults = {
        "max_steps": 12,
        "per_device_train_batch_size": 16,
        "learning_rate": 5e-3,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1000,
        "use_cpu": True,
    }
    args = LwALTrainingArguments(str(folder), **{**defaults, **options})
    core = model.get_base_model() if hasattr(model, "get_base_model") else model
    train, test = ROWS[getattr(core, "task", "text")]
    return LwALTrainer(model, args, train_dataset=train, eval_dataset=test)


def logits(model, task="text"):
    batch = ROWS[task][1].with_format("torch")[:50]
    batch.pop("labels")
    with torch.no_grad():
        return model.eval()(**batch).logits


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def equal(one, other):
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_names_of_what_must_be_saved(tiny_config, name):
    """RoBERTa's dense layer, DistilBERT's pre_classifier, DeBERTa's pooler start at random, as the head does."""
    model = AutoModelForLwALClassification.from_config(tiny_config(name, num_labels=LABELS))
    names = model.peft_modules_to_save()
    modules = dict(model.named_modules())
    if name == "resnet":
        norms = [name for name, layer in modules.items() if isinstance(layer, torch.nn.BatchNorm2d)]
        assert len(norms) > 3
        assert names == ["classifier", "encoder.classifier", *norms]
    else:
        assert names == ["classifier", *(f"encoder.{part}" for part in SAVED[name])]
    assert any(model.head_module in modules[part].modules() for part in names)
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=TARGETS.get(name, "all-linear"), modules_to_save=names)
    )
    assert wrapped.peft_modules_to_save() == names
    check_adapter(wrapped)


@pytest.mark.parametrize("name", TARGETS)
def test_train_save_load_and_merge(base, tmp_path, name):
    """An adapter without table, head or BatchNorm's statistics loads without a word and predicts nonsense."""
    model = adapted(base(name), name)
    task, before = model.task, state_of(model)
    trainer = trainer_of(model, tmp_path, max_steps=80, lwal_init_samples=16)
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > 0.9
    for key, parameter in model.named_parameters():
        assert torch.equal(parameter, before[key]) != parameter.requires_grad, key
    assert model.label_table.counts.sum() == 80 * 16 + 16 * LABELS
    trainer.save_model()

    stored = load_file(tmp_path / "adapter_model.safetensors")
    parts = tuple(f"base_model.model.{part}." for part in model.peft_modules_to_save())
    assert all("lora_" in key or key.startswith(parts) for key in stored)
    for key, value in model.label_table.state_dict().items():
        assert torch.equal(stored[f"base_model.model.classifier.{key}"], value)
    described = json.loads((tmp_path / "label_table.json").read_text(encoding="utf-8"))["labels"]
    assert [entry["count"] for entry in described] == model.label_table.counts.tolist()

    expected = logits(model, task)
    fresh = base(name, seed=1)
    assert not torch.allclose(logits(fresh, task), expected, atol=0.1)
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path)
    assert torch.equal(logits(loaded, task), expected)
    merged = loaded.merge_and_unload()
    assert type(merged) is type(fresh)
    assert type(merged.classifier).__name__ == "LabelTable"
    assert torch.allclose(logits(merged, task), expected, rtol=1e-5, atol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForLwALClassification.from_pretrained(tmp_path / "merged")
    assert torch.equal(logits(again, task), logits(merged, task))
    assert equal(again.label_table.state_dict(), model.label_table.state_dict()) == []


def test_auto_classes_of_peft(base, tmp_path):
    """An adapter on a saved LwAL model names it, so that PEFT can load both at once."""
    base().save_pretrained(tmp_path / "base")
    model = adapted(AutoModelForLwALClassification.from_pretrained(tmp_path / "base"))
    trainer = trainer_of(model, tmp_path / "adapter")
    trainer.train()
    trainer.save_model()
    allowed = ["hf_lwal.modeling.modeling_lwal"]
    loaded = peft.AutoPeftModel.from_pretrained(tmp_path / "adapter", import_allowlist=allowed)
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.parametrize("kind", ["text", "image"])
def test_an_adapter_on_a_plain_backbone(kind, tmp_path):
    """PEFT's auto class knows no number of labels: it must say what to do, and that must bring the table back."""
    folder = str(backbone(kind, tmp_path / "backbone"))
    targets = ["query", "value"] if kind == "text" else VIT
    model = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3)
    config = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=model.peft_modules_to_save())
    model = peft.get_peft_model(model, config)
    model.label_table.label_vectors.normal_()
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"plain .* AutoModelForLwALClassification.*PeftModel.from_pretrained"):
        peft.AutoPeftModel.from_pretrained(tmp_path / "adapter", import_allowlist=["hf_lwal.modeling.modeling_lwal"])
    again = AutoModelForLwALClassification.from_pretrained(folder, num_labels=3)
    again = peft.PeftModel.from_pretrained(again, tmp_path / "adapter")
    assert torch.equal(again.label_table.label_vectors, model.label_table.label_vectors)


@pytest.mark.parametrize("kept", [False, True])
def test_a_loop_is_told_of_a_table_that_no_adapter_saves(base, kept, caplog):
    """LwALTrainer refuses it; a loop trained to 94 % and came back from its adapter at chance."""
    model = base()
    table = {"modules_to_save": model.peft_modules_to_save()} if kept else {}
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["query"], **table))
    batch = {"input_ids": torch.randint(4, 40, (8, 6)), "labels": torch.arange(8) % 4}
    for _ in range(2):
        model.train()(**batch).loss.backward()
    assert caplog.text.count("does not save the label table") == (0 if kept else 1)


def test_saved_in_the_middle_of_training(base, tmp_path):
    """Label vectors are derived while training: an adapter saved then must hold those of the moment."""
    model = adapted(base())
    batch = ROWS["text"][0].with_format("torch")[:32]
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    table = model.label_table
    before = table.label_vectors.clone()
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "adapter_model.safetensors")
    head = model.get_base_model().encoder.classifier.modules_to_save["default"]
    with torch.no_grad():
        expected = torch.nn.functional.linear(table.class_features, head.weight, head.bias) + table.offset_bias
    assert torch.allclose(stored["base_model.model.classifier.label_vectors"], expected, atol=1e-6)
    assert not torch.allclose(before, expected, atol=1e-3)


def test_saving_an_adapter_on_a_plain_checkpoint_says_nothing(tiny_config, tmp_path, monkeypatch):
    """PEFT looks the vocabulary up in the checkpoint below: transformers warned of another type at every save."""
    said = []
    monkeypatch.setattr(configuration_utils.logger, "warning", lambda message, *rest: said.append(message))
    AutoModel.from_config(tiny_config("bert")).save_pretrained(tmp_path / "plain")
    model = AutoModelForLwALClassification.from_pretrained(str(tmp_path / "plain"), num_labels=4)
    adapted(model).save_pretrained(tmp_path / "adapter")
    assert [message for message in said if "to instantiate a model of type" in message] == []
    with pytest.raises(ValueError, match="is a plain 'bert' model without a label table"):
        LwALForSequenceClassification.from_pretrained(str(tmp_path / "plain"))


@pytest.mark.parametrize(("name", "step"), [("bert", 1), ("bert", 5), ("vit", 2), ("resnet", 3)])
def test_resume_is_exact(base, tmp_path, name, step):
    """The checkpoint of an adapter holds no base model: table, pending sums and head must all be in the adapter."""
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 1, "lwal_refresh_every": 2}
    options["lwal_eval_refresh_samples"] = 4  # of BatchNorm models, at every save
    whole = trainer_of(adapted(base(name), name), tmp_path / "whole", **options)
    whole.train()
    resumed = trainer_of(adapted(base(name), name), tmp_path / "resumed", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert equal(resumed.model.state_dict(), whole.model.state_dict()) == []
    assert resumed.model.label_table.step == 8
    assert resumed.model.label_table.pending_sums[:, -1].sum() == 16


def test_the_best_adapter_comes_back(base, tmp_path):
    """`load_best_model_at_end` loads the adapter alone: the table that it was best with must come back with it."""
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    model = adapted(base())
    trainer = trainer_of(model, tmp_path, load_best_model_at_end=True, learning_rate=2e-1, **options)
    trainer.train()
    logged = {log["step"]: log["eval_accuracy"] for log in trainer.state.log_history if "eval_accuracy" in log}
    assert len(set(logged.values())) > 1
    assert trainer.evaluate()["eval_accuracy"] == max(logged.values())
    best = load_file(Path(trainer.state.best_model_checkpoint) / "adapter_model.safetensors")
    for key, value in model.label_table.state_dict().items():  # the scatter is measured when the best model is kept
        assert torch.equal(best[f"base_model.model.classifier.{key}"], value) or key == "row_scatter"


def test_only_table_and_head_are_copied(base):
    """PEFT deep-copies what it saves: a hook bound to the model would drag the whole model along."""
    plain = sum(p.numel() for p in base().parameters())
    model = adapted(base())
    head, table = (sum(p.numel() for p in part.parameters()) for part in (base().head_module, base().label_table))
    lora = sum(p.numel() for n, p in model.named_parameters() if "lora_" in n)
    assert sum(p.numel() for p in model.parameters()) == plain + head + table + lora


def test_the_label_table_is_the_copy_in_use(base, tmp_path):
    """Each adapter has its own table; without adapters the base's, which was never trained."""
    model = adapted(base())
    core = model.get_base_model()
    trainer_of(model, tmp_path).train()
    assert core.label_table is core.classifier.modules_to_save["default"]
    assert not core.classifier.original_module.seen.any()
    expected = logits(model)
    with model.disable_adapter():
        assert core.label_table is core.classifier.original_module
        assert torch.equal(logits(model), logits(base()))
    assert torch.equal(logits(model), expected)
    model.add_adapter("second", peft.LoraConfig(target_modules=["query"], modules_to_save=core.peft_modules_to_save()))
    model.set_adapter("second")
    assert not core.label_table.seen.any()
    trainer_of(model, tmp_path, max_steps=3).train()
    assert core.label_table.step == 3
    model.set_adapter("default")
    assert core.label_table.step == 12
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"modules_to_save": None},
            r"does not save classifier, encoder.classifier, so.*model.peft_modules_to_save\(\)",
        ),
        ({"modules_to_save": ["encoder.classifier"]}, r"does not save classifier, so"),
        (
            {"modules_to_save": None, "target_modules": ["query", "encoder.classifier"]},  # LoRA on the head
            r"does not save classifier, encoder.classifier, so",
        ),
    ],
)
def test_adapters_that_would_lose_the_labels(base, tmp_path, options, sentence):
    """Training goes well, and after loading the label vectors are gone or meet a random head."""
    with pytest.raises(ValueError, match=sentence):
        trainer_of(adapted(base(), **options), tmp_path)


def test_layers_that_start_at_random_are_asked_for(base, tmp_path):
    """DeBERTa's pooler is no part of the backbone: frozen at random, it differs in every base that is loaded."""
    with pytest.raises(ValueError, match=r"does not save encoder.pooler, so"):
        trainer_of(adapted(base("deberta_v2"), "deberta_v2", modules_to_save=["classifier"]), tmp_path)


@pytest.mark.parametrize("options", [{"task_type": "SEQ_CLS"}, {"modules_to_save": ["classifier"]}, {"bias": "all"}])
def test_other_ways_to_the_same_adapter(base, tmp_path, options):
    """PEFT adds `classifier` itself for text classification, and matches ends of names; both must work."""
    if "task_type" in options:
        options["modules_to_save"] = None
    model = adapted(base(), **options)
    trainer_of(model, tmp_path).train()
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(base(seed=1), tmp_path)
    assert torch.equal(logits(loaded), logits(model))


def test_the_shape_of_the_table_is_settled_before(base, tmp_path):
    """A table or head that is rebuilt inside the adapter's wrapper would be trained, and not saved."""
    with pytest.raises(
        ValueError, match=r"shape cannot change any more.*apply_settings\(model, args.resolve_lwal\(\)"
    ):
        trainer_of(adapted(base()), tmp_path, lwal_preset="paper")
    with pytest.raises(ValueError, match=r"shape cannot change any more"):
        adapted(base()).resize_embedding_dim(7)
    args = LwALTrainingArguments(str(tmp_path), lwal_preset="paper")
    models = []
    for seed in (0, 1):
        model = base(seed=seed)
        apply_settings(model, args.resolve_lwal())
        models.append(model)
    model = adapted(models[0])
    trainer_of(model, tmp_path, lwal_preset="paper", per_device_train_batch_size=50).train()
    assert model.label_table.label_vectors.shape == (LABELS, LABELS)
    assert model.label_table.step == 12
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(peft.PeftModel.from_pretrained(models[1], tmp_path)), logits(model))


def test_an_adapter_loaded_for_inference(base, tmp_path):
    """It evaluates; training it would fail inside autograd, or train nothing."""
    first = trainer_of(adapted(base()), tmp_path)
    first.train()
    first.save_model()
    trainer = trainer_of(peft.PeftModel.from_pretrained(base(seed=1), tmp_path), tmp_path)
    assert trainer.evaluate()["eval_accuracy"] == first.evaluate()["eval_accuracy"]
    with pytest.raises(ValueError, match=r"loaded for inference.*is_trainable=True"):
        trainer.train()
    model = peft.PeftModel.from_pretrained(base(seed=1), tmp_path, is_trainable=True)
    counts = model.label_table.counts.sum()
    again = trainer_of(model, tmp_path, max_steps=2)
    again.train()
    assert model.label_table.counts.sum() == counts + 2 * 16
    assert "start_samples" not in again.state.log_history[0]


def test_methods_that_train_a_stock_model(base, tiny_config, tmp_path):
    """The kind of model inside an adapter cannot be changed any more, so it must be the one that the method trains."""

    def stock():
        set_seed(0)
        return AutoModelForSequenceClassification.from_config(tiny_config("bert", num_labels=LABELS))

    def lora(model):
        return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))

    with pytest.raises(ValueError, match=r"BertForSequenceClassification, which has no label table: build the model"):
        trainer_of(lora(stock()), tmp_path)
    with pytest.raises(
        ValueError, match=r"label_method='one_hot' trains a stock classifier, but the adapter is around"
    ):
        trainer_of(adapted(base()), tmp_path, label_method="one_hot")
    options = {"label_method": "one_hot", "lwal_init": "class_means", "max_steps": 1, "learning_rate": 0.0}
    plain, model = stock(), lora(stock())
    trainer_of(plain, tmp_path, **options).train()
    trainer_of(model, tmp_path, **options).train()  # LoRA starts at zero, so both heads see the same features
    assert torch.equal(model.get_base_model().classifier.weight, plain.classifier.weight)
    assert not torch.equal(model.get_base_model().classifier.original_module.weight, plain.classifier.weight)


def test_adapters_without_a_peft_model(base, tmp_path, monkeypatch):
    """`model.add_adapter` of transformers puts the adapter into the model, whose files then hold the adapter alone."""
    monkeypatch.setattr("transformers.integrations.peft.check_peft_version", lambda **_: None)
    model = base()
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["query"]))
    with pytest.raises(ValueError, match=r"does not save classifier, encoder.classifier, so"):
        trainer_of(model, tmp_path)
    model = base()
    model.add_adapter(peft.LoraConfig(r=4, target_modules=["query"], modules_to_save=model.peft_modules_to_save()))
    trainer = trainer_of(model, tmp_path)
    trainer.train()
    trainer.save_model()
    assert not (tmp_path / "model.safetensors").exists()
    if Version("5.24") > TRANSFORMERS:
        pytest.skip("load_adapter of earlier releases does not read modules_to_save, of stock models either")
    loaded = base(seed=1)
    loaded.load_adapter(str(tmp_path))
    assert torch.equal(logits(loaded), logits(model))


def test_models_without_adapters_are_left_alone(base):
    """The check runs for every model."""
    check_adapter(base())
    check_adapter(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "llama"])
@pytest.mark.parametrize("kind", [peft.LoraConfig, peft.IA3Config])
def test_target_modules_left_out(tiny_config, kind, name):
    """The layers are those that PEFT chooses in the stock model; another kind of encoder before must not matter."""
    AutoModelForLwALClassification.from_config(tiny_config("deberta_v2")).config.to_dict()
    stock = AutoModelForSequenceClassification.from_config(tiny_config(name))
    model = AutoModelForLwALClassification.from_config(tiny_config(name))
    try:
        expected = peft.get_peft_model(stock, kind(task_type="SEQ_CLS")).targeted_module_names
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            peft.get_peft_model(model, kind(task_type="SEQ_CLS"))
        return
    found = peft.get_peft_model(model, kind(task_type="SEQ_CLS"))
    assert found.targeted_module_names == [f"encoder.{layer}" for layer in expected]
    check_adapter(found)


def test_target_modules_of_images(tiny_config):
    """PEFT knows no layers of ViT for LoRA: the same error as for the stock model, not another encoder's layers."""
    AutoModelForLwALClassification.from_config(tiny_config("bert")).config.to_dict()
    model = AutoModelForLwALClassification.from_config(tiny_config("vit"))
    with pytest.raises(ValueError, match="specify `target_modules`"):
        peft.get_peft_model(model, peft.LoraConfig())


def test_sizes_for_peft_are_not_saved(tiny_config, tmp_path):
    """The encoder's sizes are read from the dictionary; in the file they would contradict the encoder's own."""
    config = AutoModelForLwALClassification.from_config(tiny_config("bert")).config
    sizes = config.encoder_config.to_dict()
    found = config.to_dict()
    for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
        assert found[name] == sizes[name]
    assert found["model_type"] == "lwal"
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert {"hidden_size", "num_attention_heads", "num_hidden_layers"}.isdisjoint(saved)
    found["encoder_config"]["hidden_size"] = 64
    assert type(config).from_dict(found).encoder_config.hidden_size == 64


def test_a_prefix_is_never_dropped(tiny_config):
    """A prefix must change the answer, and a backbone that takes none must say so."""
    config = {"task_type": "SEQ_CLS", "num_virtual_tokens": 3}
    inputs = {"input_ids": torch.arange(1, 9).view(2, 4), "attention_mask": torch.ones(2, 4, dtype=torch.int64)}
    set_seed(0)
    model = AutoModelForLwALClassification.from_config(tiny_config("bert")).eval()
    before = model(**inputs).embeddings
    tuned = peft.get_peft_model(model, peft.PrefixTuningConfig(**config)).eval()
    after = tuned(**inputs).embeddings
    assert not torch.allclose(before, after, atol=1e-6)
    after.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in tuned.prompt_encoder.parameters())
    model = AutoModelForLwALClassification.from_config(tiny_config("distilbert")).eval()
    sizes = {"token_dim": model.config.dim, "num_layers": model.config.n_layers, "num_attention_heads": 2}
    tuned = peft.get_peft_model(model, peft.PrefixTuningConfig(**config, **sizes)).eval()
    with pytest.raises(TypeError, match="past_key_values"):
        tuned(**inputs)
