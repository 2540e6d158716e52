"""A text classifier that pools the tokens of any backbone and has one linear layer, for LwAL and its controls alike.

Stock classifiers read a sentence encoder as it was never trained to be read: `BertForSequenceClassification` takes the
first token through a pooler that fine-tuning has to learn. No stock class pools otherwise, so this is a class of its
own, with its own configuration. It is registered with `AutoModelForSequenceClassification`, and to everything else
here it is one more stock classifier: its head is found, widened to D outputs, starts, folds, saves and resumes as
theirs do, and what trains without a label table trains it with C outputs. The backbone lies under its own name
(``model.bert``), so any checkpoint of it loads through transformers' own loading, and adapters find the layers they
know.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .configuration_pooled import LwALPooledConfig, encoder_class, why_not_pooled
from .hub_code import forget_code, write_code
from .pooling import pool


def backbone_from_config(config: PreTrainedConfig) -> PreTrainedModel:
    """Build the encoder of a text model with random weights, without the pooler that nothing would train.

    Args:
        config: of the backbone.

    Raises:
        ValueError: its architecture does not give one vector per token.
    """
    reason = why_not_pooled(config)
    if reason is not None:
        raise ValueError(f"{reason}: load it with pooling='model'.")
    model_class = encoder_class(config)
    optional = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    backbone: PreTrainedModel = model_class._from_config(config, **({"add_pooling_layer": False} if optional else {}))
    for name, parameter in backbone.named_parameters():
        if name.startswith("pooler."):  # several processes wait for gradients of all that could have one
            parameter.requires_grad_(False)
    return backbone


class LwALPooledForSequenceClassification(PreTrainedModel):
    """Backbone, pooling, dropout and ``classifier``, one linear layer."""

    config: LwALPooledConfig
    config_class = LwALPooledConfig
    supports_gradient_checkpointing = True
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"(^|\.)pooler\."]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: LwALPooledConfig) -> None:
        super().__init__(config)
        backbone = backbone_from_config(config.base_config)
        config.base_config = backbone.config
        # What the backbone settled on, not what this class would allow: a copy of the configuration builds it again.
        config._attn_implementation_internal = backbone.config._attn_implementation
        config._experts_implementation_internal = backbone.config._experts_implementation
        self.base_model_prefix = backbone.base_model_prefix or "backbone"
        self.add_module(self.base_model_prefix, backbone)
        self.dropout = nn.Dropout(config.dropout_rate)
        width = config.get_text_config().hidden_size * len(config.pooling.split("+"))
        self.classifier = nn.Linear(width, config.num_labels)
        self._backbone_arguments = set(inspect.signature(type(backbone).forward).parameters)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        bbox: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Classify texts; arguments as in the stock classifiers, ``labels`` (B,) int64."""
        inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            "bbox": bbox,
        }
        known = {
            name: value for name, value in inputs.items() if value is not None and name in self._backbone_arguments
        }
        flags = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        flags = {name: getattr(self.config, name) or None if value is None else value for name, value in flags.items()}
        known.update({name: value for name, value in flags.items() if value is not None})
        encoded = self.base_model(**known, return_dict=True)
        tokens = encoded.last_hidden_state  # (B, T, H)
        if attention_mask is None:  # the backbone took every token for one of the text
            if input_ids is not None:
                self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
            attention_mask = torch.ones(tokens.shape[:2], dtype=torch.int64, device=tokens.device)
        pooled = pool(tokens, attention_mask.to(tokens.device), self.config.pooling, self.config.normalize)
        logits = self.classifier(self.dropout(pooled))  # (B, C)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=encoded.get("hidden_states"), attentions=encoded.get("attentions")
        )

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Save the model and the code that loads it where hf-lwal is not installed; arguments as in transformers."""
        forget_code(self.config)
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            self._write_code(save_directory)

    def _write_code(self, folder: str | os.PathLike[str]) -> None:
        write_code(folder, "text", type(self).__name__, "modeling_pooled", LwALPooledConfig.__name__)

    def _upload_modified_files(self, working_dir: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        self._write_code(working_dir)  # save_pretrained(push_to_hub=True) uploads before it has written the rest
        return super()._upload_modified_files(working_dir, *args, **kwargs)

    def get_input_embeddings(self) -> nn.Module:
        """The backbone's input embeddings."""
        return self.base_model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the backbone's input embeddings."""
        self.base_model.set_input_embeddings(value)
