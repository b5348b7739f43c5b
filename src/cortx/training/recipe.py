"""Recipes: everything that can be set about the method, with the four that have names."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from cortx.errors import InputError
from cortx.training.encoders import EncoderConfig, HeadConfig
from cortx.training.features import FeatureConfig
from cortx.training.finetune import FinetuneConfig
from cortx.training.pretrain import PretrainConfig
from cortx.training.stream import StreamConfig
from cortx.training.student import StudentConfig


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
    stream: StreamConfig | None = None
    """For images: how a budget is learned from, as fresh labels for every image."""
    student: StudentConfig | None = None
    """For tables: how a student learns v(S) from a budget, to label rows for the explainer; None: no student."""

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
            stream=None if data.get("stream") is None else StreamConfig(**data["stream"]),
            student=None if data.get("student") is None else StudentConfig(**data["student"]),
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
    return Recipe(name="default", student=StudentConfig())


def quick_recipe() -> Recipe:
    """The default in small: half as wide and with far fewer steps, for a first look in seconds."""
    return Recipe(
        name="quick",
        encoder=EncoderConfig(width=128, depth=2, latent=128),
        head=HeadConfig(width=128, depth=1),
        pretrain=PretrainConfig(steps=500),
        attribution=FinetuneConfig(steps=2_000),
        ranking=FinetuneConfig(tune_encoder=False, loss="own", steps=500),
        student=StudentConfig(width=96, steps=1_200, label_rows=30_000, label_asks=2_500_000),
    )


def thorough_recipe() -> Recipe:
    """The default in large, for a GPU: wider networks, more steps, precise labels of 200,000 rows; minutes there."""
    return Recipe(
        name="thorough",
        encoder=EncoderConfig(width=512, depth=3, latent=512),
        head=HeadConfig(width=512, depth=2),
        attribution=FinetuneConfig(steps=24_000, batch_size=1_024),
        student=StudentConfig(
            width=512, depth=3, steps=12_000, batch_size=1_024, learning_rate=3e-3, label_values=48, most_values=640,
            many_players_values=640, label_rows=200_000, label_asks=128_000_000,
        ),
    )  # fmt: skip


def image_recipe() -> Recipe:
    """The default for images (docs/decisions/0008-images.md): a decoder on all scales of the encoder, fresh labels."""
    return Recipe(
        name="default",
        encoder=EncoderConfig("resnet18", width=64),
        head=HeadConfig("decoder", width=192, depth=2, attention=6),
        pretrain=PretrainConfig(steps=300, rough_pairs=0, learning_rate=2e-4, batch_size=256),
        attribution=FinetuneConfig(steps=3_000, learning_rate=1e-3),
        stream=StreamConfig(),
    )


def quick_image_recipe() -> Recipe:
    """The default for images in small."""
    return Recipe(
        name="quick",
        encoder=EncoderConfig("resnet18", width=16),
        head=HeadConfig("decoder", width=64, depth=1, attention=2),
        pretrain=PretrainConfig(steps=50, rough_pairs=0, learning_rate=2e-4, batch_size=64),
        attribution=FinetuneConfig(steps=500, learning_rate=1e-3),
        stream=StreamConfig(pairs=8, batch_size=64, learning_rate=3e-3, replays=3, imitation_steps=300),
    )


def paper_image_recipe() -> Recipe:
    """CoRTX as written, for images (tab:hyper_setting, CIFAR-10): a ResNet-18, 300 positives, a 3-layer head."""
    tables = paper_recipe()
    return replace(
        tables,
        encoder=EncoderConfig("resnet18", width=64),
        head=replace(tables.head, width=512),
        # The paper does not say for how long; 600 steps are 12 passes over CIFAR-10.
        pretrain=replace(tables.pretrain, n_positives=300, steps=600, rounds=1),
        attribution=replace(tables.attribution, learning_rate=1e-3, weight_decay=1e-3),
    )


RecipeName = Literal["default", "quick", "thorough", "paper"]
_NAMED = {
    "default": default_recipe,
    "quick": quick_recipe,
    "thorough": thorough_recipe,
    "paper": paper_recipe,
}
_FOR_IMAGES = {"default": image_recipe, "quick": quick_image_recipe, "paper": paper_image_recipe}
"""There is no larger one for images: their default is made for a GPU."""


def get_recipe(recipe: RecipeName | Recipe, *, images: bool = False) -> Recipe:
    """A recipe by its name, for tables or for images; one that is given must suit them."""
    if isinstance(recipe, Recipe):
        if (recipe.encoder.kind == "resnet18") != images:
            kind = "images" if images else "tables"
            raise InputError(
                f"the recipe has the encoder {recipe.encoder.kind!r}, which is not for {kind}; start from "
                f"cortx.training.recipe.get_recipe('default', images={images})"
            )
        return recipe
    if recipe not in _NAMED:
        raise InputError(f"recipe must be one of {', '.join(map(repr, _NAMED))} or a Recipe, got {recipe!r}")
    if images and recipe not in _FOR_IMAGES:
        raise InputError(
            f"the recipe {recipe!r} is for tables; for images use one of {', '.join(map(repr, _FOR_IMAGES))}"
        )
    return (_FOR_IMAGES if images else _NAMED)[recipe]()
