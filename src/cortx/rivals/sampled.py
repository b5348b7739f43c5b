"""This library's own sampling estimators as rivals of the explainers that learn."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from cortx.estimators.shapley import DEFAULT_BUDGET, shapley
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.rivals.base import Rival


class Sampled(Rival):
    """`cortx.shapley` with `row_budget` model evaluations for each row, v(all) among them.

    Rows whose coalitions the budget covers are enumerated, and so exact. `outputs` saves nothing here: v(all) is
    evaluated with the rest. Several outputs are explained at once.
    """

    name: ClassVar[str] = "kernel"

    def __init__(
        self,
        game: Game,
        method: Literal["kernel", "permutation"] | None = None,
        *,
        row_budget: int = DEFAULT_BUDGET,
        seed: int = 0,
    ) -> None:
        self.game, self.method, self.row_budget, self.seed = game, method or self.name, row_budget, seed

    def explain(self, X: Any, outputs: Any = None) -> Explanation:
        return shapley(self.game, X, self.method, row_budget=self.row_budget, views=0, seed=self.seed, progress=False)


class SampledPermutation(Sampled):
    """Antithetic permutation sampling."""

    name: ClassVar[str] = "permutation"
