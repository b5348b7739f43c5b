"""Recipes: everything that can be set about the method, with the three that have names."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from cortx.errors import InputError
from cortx.training.encoders import EncoderConfig, HeadConfig
from cortx.training.features import FeatureConfig
from cortx.training.finetune import FinetuneConfig
from cortx.training.pretrain import PretrainConfig


@dataclass(frozen=True)
class Recipe:
    """How an explainer is made. ``dataclasses.replace`` changes a part."""

    name: str
    features: FeatureConfig = field(default_factory=FeatureConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    attribution: FinetuneConfig = field(default_factory=FinetuneConfig)
    ranking: FinetuneConfig = field(default_factory=lambda: FinetuneConfig(tune_encoder=False, loss="own", steps=2_000))
    validation_share: float = 0.1
    """Share of the labels that never trains anything and chooses the epoch."""

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            raise InputError(f"validation_share must lie between 0 and 1, got {self.validation_share}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Recipe:
        return Recipe(
            name=data["name"],
            features=FeatureConfig(**data["features"]),
            encoder=EncoderConfig(**data["encoder"]),
            head=HeadConfig(**data["head"]),
            pretrain=PretrainConfig(**data["pretrain"]),
            attribution=FinetuneConfig(**data["attribution"]),
            ranking=FinetuneConfig(**data["ranking"]),
            validation_share=data["validation_share"],
        )


def paper_recipe() -> Recipe:
    """CoRTX as written: raw inputs, Eq. 2, 4 and 5, a frozen encoder, 3-layer heads (tab:hyper_setting, Census)."""
    tune = FinetuneConfig(
        tune_encoder=False,
        loss="own",
        view_share=0.0,
        rough_share=0.0,
        steps=2_000,
        learning_rate=5e-3,
        weight_decay=1e-6,
    )
    return Recipe(
        name="paper",
        features=FeatureConfig(raw=True),
        encoder=EncoderConfig(kind="mlp", width=256, depth=3, latent=256),
        head=HeadConfig(
            kind="mlp", width=256, depth=3, sees_total=False, missing_is_zero=False, normalize_in_loss=False
        ),
        pretrain=PretrainConfig(
            steps=2_000,
            rounds=10,
            temperature=0.02,
            batch_size=1024,
            learning_rate=5e-3,
            schedule="constant",
            n_positives=30,
            rough_pairs=0,
        ),
        attribution=tune,
        ranking=replace(tune, learning_rate=1e-3, weight_decay=0.0),
    )


def default_recipe() -> Recipe:
    """The best we can make (docs/decisions/0001-default-recipe.md says what each part earns)."""
    return Recipe(name="default")


def quick_recipe() -> Recipe:
    """The default in small: half as wide and with far fewer steps, for a first look in seconds."""
    return Recipe(
        name="quick",
        encoder=EncoderConfig(width=128, depth=2, latent=128),
        head=HeadConfig(width=128, depth=1),
        pretrain=PretrainConfig(steps=500),
        attribution=FinetuneConfig(steps=2_000),
        ranking=FinetuneConfig(tune_encoder=False, loss="own", steps=1_000),
    )


RecipeName = Literal["default", "quick", "paper"]
_NAMED = {"default": default_recipe, "quick": quick_recipe, "paper": paper_recipe}


def get_recipe(recipe: RecipeName | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in _NAMED:
        raise InputError(f"recipe must be one of {', '.join(map(repr, _NAMED))} or a Recipe, got {recipe!r}")
    return _NAMED[recipe]()
