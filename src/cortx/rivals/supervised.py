"""Supervised RTX: a network trained on labels alone, from scratch (the paper's appendix on baselines)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from cortx.errors import InputError
from cortx.explainer.explainer import CoRTX
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.games.game import for_tables
from cortx.rivals.base import Rival
from cortx.training.recipe import Recipe, default_recipe, paper_recipe

Form = Literal["paper", "strong"]
Loss = Literal["mse", "ce"]


class SupervisedRTX(Rival):
    """Learns attributions ("mse") or rankings ("ce") from labelled rows, and from nothing else.

    Parameters
    ----------
    form:
        ``"paper"``: a 6-layer MLP on the table's own numbers, with the paper's loss. ``"strong"``: the inputs, network,
        axioms and schedule of our default recipe; what it lacks is pre-training, rough labels and free masked copies.
    loss:
        ``"mse"`` gives values; ``"ce"`` (only in the paper's form) gives a ranking, and values that mean nothing.
    """

    name: ClassVar[str] = "supervised"

    def __init__(self, form: Form = "paper", *, loss: Loss = "mse", seed: int = 0, device: str = "cpu") -> None:
        if form not in ("paper", "strong") or loss not in ("mse", "ce"):
            raise InputError(f"form must be 'paper' or 'strong', loss 'mse' or 'ce', got {form!r} and {loss!r}")
        if form == "strong" and loss == "ce":
            raise InputError("the strong form learns attributions and ranks by them; use loss='mse'")
        self.form, self.loss, self.seed, self.device = form, loss, seed, device
        heads = ("attribution",) if loss == "mse" else ("attribution", "ranking")
        self.explainer = CoRTX(_recipe(form, loss), heads=heads, unseen="ignore", seed=seed, device=device)

    def fit(self, game: Game, X: Any, *, labels: Any, progress: bool | None = None) -> SupervisedRTX:
        """Trains on `labels`: a pair of indices into X and their values (a tenth of them chooses the epoch)."""
        if game.of_images:
            raise for_tables("SupervisedRTX")
        self.explainer.fit(game, X, labels=labels, progress=progress)
        return self

    @property
    def costs_(self) -> dict[str, Any]:
        """Model evaluations and seconds of each stage; what given labels cost is the caller's to count."""
        return self.explainer.costs_

    def explain(self, X: Any, outputs: Any = None) -> Explanation:
        return replace(self.explainer.explain(X, outputs), method=self.name)


def _recipe(form: Form, loss: Loss) -> Recipe:
    if form == "strong":
        recipe = default_recipe()
        tune = replace(recipe.attribution, view_share=0.0, rough_share=0.0)
        return replace(
            recipe,
            name="supervised-strong",
            pretrain=replace(recipe.pretrain, steps=0, rough_pairs=0),
            attribution=tune,
        )
    recipe = paper_recipe()
    tune, rank = (replace(part, tune_encoder=True) for part in (recipe.attribution, recipe.ranking))
    return replace(
        recipe,
        name="supervised",
        # A linear encoder before six layers: six layers in all, counted as the paper counts them.
        encoder=replace(recipe.encoder, depth=1),
        head=replace(recipe.head, depth=6),
        pretrain=replace(recipe.pretrain, steps=0),
        attribution=tune if loss == "mse" else replace(tune, steps=1),
        ranking=rank,
    )
