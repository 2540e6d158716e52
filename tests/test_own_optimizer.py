"""An optimizer that the user built is the one that trains, whatever layers the trainer replaces."""

from __future__ import annotations

import pytest
import torch
from toy import separable_text
from transformers import Adafactor, AutoModelForSequenceClassification, set_seed
from transformers.optimization import AdafactorSchedule

from hf_lwal import AutoModelForLwALClassification, LwALTrainer, LwALTrainingArguments

LABELS = 4
TRAIN = separable_text(LABELS, 64, 0)


def build(tiny_config, kind):
    set_seed(0)
    auto = AutoModelForSequenceClassification if kind == "stock" else AutoModelForLwALClassification
    return auto.from_config(tiny_config("bert", num_labels=LABELS))


def trainer_of(model, folder, optimizers=(None, None), **options):
    options = {"max_steps": 3, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", **options}
    options |= {"per_device_train_batch_size": 16, "logging_steps": 1, "learning_rate": 5e-5}
    arguments = LwALTrainingArguments(str(folder), dataloader_pin_memory=False, **options)
    return LwALTrainer(model, arguments, train_dataset=TRAIN, optimizers=optimizers)


def groups_of(model):
    """Layer-wise rates, heads apart, biases without decay: what recipes for fine-tuning build."""
    head = {id(parameter) for parameter in model.get_submodule("classifier").parameters()}
    head |= {id(p) for name, p in model.named_parameters() if name.startswith("encoder.classifier")}
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if id(p) not in head and not n.endswith("bias")], "lr": 1e-3},
        {"params": [p for n, p in named if id(p) not in head and n.endswith("bias")], "lr": 2e-3, "weight_decay": 0.0},
        {"params": [p for n, p in named if id(p) in head and not n.endswith("bias")], "lr": 3e-3},
        {"params": [p for n, p in named if id(p) in head and n.endswith("bias")], "lr": 4e-3, "weight_decay": 0.0},
    ]


OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    "adafactor": lambda model: Adafactor(model.parameters(), lr=None, relative_step=True, scale_parameter=True),
    "groups": lambda model: torch.optim.AdamW(groups_of(model), weight_decay=0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3),
}
REPLACED = {
    "stock model": ("stock", {}),
    "paper preset": ("lwal", {"lwal_preset": "paper"}),
    "wider paper preset": ("lwal", {"lwal_preset": "paper:lwal10"}),
    "one-hot on a model with a table": ("lwal", {"label_method": "one_hot"}),
}


@pytest.mark.parametrize(
    ("case", "name"),
    [*((case, "groups") for case in REPLACED), *(("stock model", name) for name in OPTIMIZERS if name != "groups")],
)
def test_the_optimizer_of_the_user_trains(tiny_config, tmp_path, case, name):
    """Prevents AdamW at args.learning_rate from training in its place, while the scheduler drives the one given."""
    kind, options = REPLACED[case]
    model = build(tiny_config, kind)
    mine = OPTIMIZERS[name](model)
    rates = [group["lr"] for group in mine.param_groups]
    fixed = name != "adafactor"
    plan = torch.optim.lr_scheduler.LambdaLR(mine, lambda step: 0.5**step) if fixed else AdafactorSchedule(mine)
    trainer = trainer_of(model, tmp_path, (mine, plan), **options)
    trainer.train()
    assert trainer.optimizer.optimizer is mine
    if fixed:
        assert [group["lr"] for group in mine.param_groups] == pytest.approx([rate * 0.5**3 for rate in rates])
    held = [id(parameter) for group in mine.param_groups for parameter in group["params"]]
    trained = [id(parameter) for parameter in trainer.model.parameters() if parameter.requires_grad]
    assert sorted(held) == sorted(trained)  # every one once, none of the layers that are gone
    assert {id(parameter) for parameter in mine.state} <= set(held)


def test_a_new_head_learns_as_the_old_one_was_to(tiny_config, tmp_path):
    """Prevents a rate or decay meant for the head from going to the backbone, or a decay to the label table."""
    model = build(tiny_config, "stock")
    mine = OPTIMIZERS["groups"](model)
    trainer = trainer_of(model, tmp_path, (mine, None))
    trainer.create_optimizer()
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    head, biases = ([names[p] for p in group["params"]] for group in mine.param_groups[2:])
    assert head == ["encoder.classifier.weight"]
    assert set(biases) == {"encoder.classifier.bias", "classifier.offset_bias", "classifier.log_scale_bias"}


def test_the_step_is_that_of_the_optimizer_given(tiny_config, tmp_path):
    """The weights after a step, against SGD by hand: prevents a right-looking optimizer that steps something else."""
    model = build(tiny_config, "stock")
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    options["lwal_refresh_every"] = 0  # a refresh lets the offset absorb the jump of the class means
    trainer = trainer_of(model, tmp_path, (mine, None), **options)
    before, gradients = {}, {}

    def keep(*_):
        for name, parameter in trainer.model.named_parameters():
            before[name], gradients[name] = parameter.detach().clone(), parameter.grad.clone()

    mine.register_step_pre_hook(keep)
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name] - 0.1 * gradients[name])


def test_parameters_left_out_stay_out(tiny_config, tmp_path, caplog):
    """A head that the user does not train, or a backbone: prevents training what he froze, and a silent lack."""
    model = build(tiny_config, "stock")
    mine = torch.optim.SGD(model.get_submodule("classifier").parameters(), lr=0.1)
    trainer = trainer_of(model, tmp_path, (mine, None))
    trainer.create_optimizer()
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    assert not any(names[p].startswith("encoder.bert") for group in mine.param_groups for p in group["params"])
    model = build(tiny_config, "stock")
    mine = torch.optim.SGD(model.bert.parameters(), lr=0.1)
    trainer_of(model, tmp_path, (mine, None)).create_optimizer()
    assert "does not hold encoder.classifier.weight" in caplog.text


def test_state_and_foreign_parameters_are_kept(tiny_config, tmp_path):
    """Prevents losing the momentum of a backbone that was trained before, or a parameter of the user's own loss."""
    model, margin = build(tiny_config, "stock"), torch.nn.Parameter(torch.zeros(3))
    mine = torch.optim.AdamW([{"params": list(model.parameters())}, {"params": [margin], "lr": 0.5}])
    model(input_ids=torch.tensor([[2, 5, 3]]), labels=torch.tensor([1])).loss.backward()
    mine.step()
    mine.zero_grad()
    moments = mine.state[model.bert.pooler.dense.weight]["exp_avg"].clone()
    trainer = trainer_of(model, tmp_path, (mine, None))
    trainer.create_optimizer()
    assert torch.equal(mine.state[trainer.model.encoder.bert.pooler.dense.weight]["exp_avg"], moments)
    assert mine.param_groups[1]["params"][0] is margin


def test_a_label_added_between_trainings_is_trained_by_it_too(tiny_config, tmp_path):
    model = build(tiny_config, "stock")
    mine = torch.optim.SGD(model.parameters(), lr=0.05)
    trainer = trainer_of(model, tmp_path, (mine, None))
    trainer.train()
    trainer.model.remove_label(trainer.model.config.id2label[3])
    trainer.train_dataset = TRAIN.filter(lambda row: row["labels"] != 3)
    trainer.train()
    assert trainer.optimizer.optimizer is mine
    held = {id(parameter) for group in mine.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in trainer.model.parameters() if parameter.requires_grad}


def test_groups_in_the_options_of_a_class(tiny_config, tmp_path):
    """optimizer_cls_and_kwargs with groups of the model handed over: prevents training layers that are gone."""
    model = build(tiny_config, "stock")
    options = {"params": groups_of(model), "weight_decay": 0.1}
    arguments = LwALTrainingArguments(str(tmp_path), report_to="none")
    trainer = LwALTrainer(model, arguments, train_dataset=TRAIN, optimizer_cls_and_kwargs=(torch.optim.AdamW, options))
    optimizer = trainer.create_optimizer()
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 2e-3, 3e-3, 4e-3]
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in trainer.model.parameters() if parameter.requires_grad}


def test_an_optimizer_of_another_model_is_refused(tiny_config, tmp_path):
    """Prevents a training in which nothing moves."""
    other = torch.optim.SGD(build(tiny_config, "stock").parameters(), lr=0.1)
    with pytest.raises(ValueError, match="would not train the model"):
        trainer_of(build(tiny_config, "stock"), tmp_path, (other, None)).train()


def test_what_the_objective_learns_is_missed_where_a_subclass_leaves_it_out(tiny_config, tmp_path, caplog):
    """The learned label embedding of label_embed stayed at its start, and nothing said so."""

    class OwnOptimizer(LwALTrainer):
        def create_optimizer(self, model=None):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            return self.optimizer

    for kind, said in ((LwALTrainer, False), (OwnOptimizer, True)):
        caplog.clear()
        arguments = LwALTrainingArguments(
            str(tmp_path), max_steps=1, report_to="none", label_method="label_embed", dataloader_pin_memory=False
        )
        kind(build(tiny_config, "stock"), arguments, train_dataset=TRAIN).train()
        assert ("OwnOptimizer.create_optimizer leaves out embedding" in caplog.text) is said
