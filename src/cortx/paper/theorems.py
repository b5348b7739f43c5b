"""Theorems 1 and 2 of the paper, measured: both sides of each inequality on rows, and how often assumptions hold.

Two things to know when reading the numbers. The model's Lipschitz constant K_f is estimated from below, by the largest
slope seen: the true one can only make the right sides larger. And a model that truncates category codes, as the
published AutoInt on Census does, jumps between them: in its raw inputs no finite K_f exists, and what is measured is
the slope between rows and masked copies that really occur.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from cortx.errors import InputError
from cortx.estimators.shapley import shapley
from cortx.explainer.explainer import CoRTX
from cortx.explanation import Explanation
from cortx.games import Game, Rows
from cortx.games.game import table_of
from cortx.metrics import l2_distance
from cortx.seeding import stream_seed
from cortx.tables import Table, write_table
from cortx.training.heads.attribution import AttributionHead
from cortx.training.positives import Positives, choose_positives, synthetic_positives

__all__ = ["Inequality", "head_lipschitz", "model_lipschitz", "theorem_1", "theorem_2"]

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
ROUNDING = 1e-12
"""Attributions this little below zero count as zero."""
PAIRS_AT_A_TIME = 512
WHO = "a check of the theorems"


@dataclass(frozen=True, eq=False)
class Inequality:
    """left <= right, one of each for every row, (rows,), as measured."""

    method: str
    left: Array
    right: Array
    assumption: BoolArray
    """Rows for which what the theorem assumes is true."""
    trivial: Array
    """A bound on the left side that needs no theorem, to see what the right side adds."""
    constants: dict[str, float]
    evaluations: int
    seconds: float

    def summary(self) -> dict[str, float]:
        """Everything as flat numbers; "tightness" is the median of right / left, "informative" the share of rows
        where the right side is below the trivial bound."""
        known = self.left > 0
        result: dict[str, float] = {"rows": len(self.left)}
        for side, values in (("left", self.left), ("right", self.right)):
            result |= {
                f"{side}_median": float(np.median(values)),
                f"{side}_mean": float(values.mean()),
                f"{side}_max": float(values.max()),
            }
        return result | {
            "holds": float((self.left <= self.right).mean()),
            "tightness": float(np.median(self.right[known] / self.left[known])) if known.any() else math.nan,
            "informative": float((self.right < self.trivial).mean()),
            "assumption_holds": float(self.assumption.mean()),
            **self.constants,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
        }


def theorem_1(
    game: Game,
    rows: Any,
    *,
    values: Literal["shapley", "banzhaf"] = "shapley",
    positives: Positives = "compact",
    n_positives: int = 30,
    keep: float = 0.5,
    seed: int = 0,
    labels: Explanation | None = None,
    lipschitz: float | None = None,
    progress: bool | None = None,
) -> Inequality:
    """Theorem 1 (paper Eq. 3): ||Phi(x) - Phi(x~)|| <= (1 + sqrt(2) g) |f(x) - f(x~)| + sqrt(M) g, g = K_f ||x||.

    The assumption is that no attribution of the masked copy x~ is negative.

    Parameters
    ----------
    values:
        "shapley", or "banzhaf": paper Eq. 1 as it is written. Both exact.
    positives:
        Which of `n_positives` masked copies is x~: "compact", as in training, or another to compare with.
    labels:
        Exact values of these rows, if they are known already; else they are computed here.
    lipschitz:
        K_f, where it is known; else `model_lipschitz` estimates it from below.
    """
    started, spent = perf_counter(), game.evaluations
    pairs = _pairs(game, rows, positives, n_positives, keep, seed)
    phi, phi_masked = _labels(game, rows, pairs, values, labels, progress)
    gamma, constants = _gamma(game, pairs, lipschitz, n_positives, keep, seed)
    left = np.linalg.norm(phi - phi_masked, axis=1)
    right = _right(pairs.gap, gamma, game.n_players)
    constants["lipschitz_needed"] = _needed(left, pairs, game.n_players)
    return Inequality(
        method=f"theorem-1-{values}",
        left=left,
        right=right,
        assumption=phi_masked.min(axis=1) >= -ROUNDING,
        trivial=np.linalg.norm(phi, axis=1) + np.linalg.norm(phi_masked, axis=1),
        constants=constants,
        evaluations=game.evaluations - spent,
        seconds=perf_counter() - started,
    )


def theorem_2(
    explainer: CoRTX,
    game: Game,
    rows: Any,
    training: Explanation,
    *,
    n_positives: int = 30,
    keep: float = 0.5,
    seed: int = 0,
    labels: Explanation | None = None,
    lipschitz: float | None = None,
    progress: bool | None = None,
) -> Inequality:
    """Theorem 2 (paper Eq. 6): ||Phi(x) - Phi^(x)|| <= the right side of Theorem 1 + E + K_eta ||h(x~) - h(x)||.

    E is the largest error on `training`, labelled rows that the explainer learned from ("holds_mean_error" takes
    the mean error instead); K_eta is `head_lipschitz`, from above. The explainer's answer is the one users get, after
    the additive normalization. That adds (f(x) - f(reference)) / M to every score, which the theorem's
    head, a function of h alone, cannot know: between x and x~ it moves the answer by |f(x) - f(x~)| / sqrt(M), which
    is not part of the right side but reported ("normalization_term_max"); the rest of the normalization is a
    projection and part of K_eta.

    The assumption is that of Theorem 1, and that the error on x~ is at most E, which the proof needs though x~ is no
    training row. The trivial bound is ||Phi(x)|| + ||Phi^(x)||.
    """
    started, spent = perf_counter(), game.evaluations
    head = _plain_head(explainer)
    pairs = _pairs(game, rows, "compact", n_positives, keep, seed)
    phi, phi_masked = _labels(game, rows, pairs, "shapley", labels, progress)
    gamma, constants = _gamma(game, pairs, lipschitz, n_positives, keep, seed)
    answer, latent = _predicted(explainer, pairs.table.matrix, pairs.outputs)
    answer_masked, latent_masked = _predicted(explainer, pairs.masked, pairs.outputs_masked)
    training_errors = l2_distance(explainer.explain(training.data, training.outputs), training)
    above = head_lipschitz(head)
    distance = np.linalg.norm(latent - latent_masked, axis=1)
    left = np.linalg.norm(phi - answer, axis=1)
    masked_error = np.linalg.norm(phi_masked - answer_masked, axis=1)
    largest, mean = float(training_errors.max()), float(training_errors.mean())
    base = _right(pairs.gap, gamma, game.n_players)
    right = base + largest + above * distance
    constants |= {
        "lipschitz_head": above,
        "lipschitz_head_below": _steepest(
            np.concatenate([latent, latent_masked]), _centred(np.concatenate([answer, answer_masked]))
        ),
        "training_error_max": largest,
        "training_error_mean": mean,
        "masked_error_median": float(np.median(masked_error)),
        "masked_error_max": float(masked_error.max()),
        "latent_distance_median": float(np.median(distance)),
        "latent_term_median": float(np.median(above * distance)),
        "normalization_term_max": float(pairs.gap.max() / math.sqrt(game.n_players)),
        "holds_mean_error": float((left <= right - largest + mean).mean()),
    }
    return Inequality(
        method="theorem-2",
        left=left,
        right=right,
        assumption=(phi_masked.min(axis=1) >= -ROUNDING) & (masked_error <= largest),
        trivial=np.linalg.norm(phi, axis=1) + np.linalg.norm(answer, axis=1),
        constants=constants,
        evaluations=game.evaluations - spent,
        seconds=perf_counter() - started,
    )


# Lipschitz constants -----------------------------------------------------------------------------------------------


def model_lipschitz(game: Game, rows: Any, *, n_copies: int = 30, keep: float = 0.5, seed: int = 0) -> float:
    """The largest |f(a) - f(b)| / ||a - b|| seen, in the model's input columns: K_f from below.

    Pairs are all pairs of rows, and each row with `n_copies` random masked copies and with the copies that lack one
    player. Rows at distance zero are left out.
    """
    ready = game.rows(rows)
    return _steepest_model(game, ready, game.full_values(ready), n_copies, keep, seed)


def head_lipschitz(head: AttributionHead) -> float:
    """K_eta from above: the product of the spectral norms of the head's layers, times the scale of its scores.

    ELU has slope one at most. The additive normalization takes the mean off the scores, a projection; it is
    applied to the last layer before its norm is taken.
    """
    layers = list(head.layers)
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if any(not isinstance(layer, (nn.Linear, nn.ELU)) for layer in layers):
        kinds = sorted({type(layer).__name__ for layer in layers})
        raise InputError(f"the head must have linear layers with ELU between them, got {', '.join(kinds)}")
    product = float(head.label_scale.max())
    for layer in linear:
        weight = layer.weight.detach().to(torch.float64).cpu()
        if layer is linear[-1]:
            weight = weight - weight.mean(dim=0)
        product *= float(torch.linalg.matrix_norm(weight, ord=2))
    return product


def _steepest_model(game: Game, rows: Rows, outputs: Array, n_copies: int, keep: float, seed: int) -> float:
    matrix = table_of(rows, WHO).matrix
    steepest = _steepest(matrix, outputs)
    stream = stream_seed(seed, "slopes")
    lacking_one = ~np.eye(game.n_players, dtype=bool)
    for start in range(0, len(rows), PAIRS_AT_A_TIME):
        index = np.arange(start, min(start + PAIRS_AT_A_TIME, len(rows)))
        part = rows.take(index)
        random = synthetic_positives(part.words, game.n_players, n_copies, keep, stream)
        each = np.broadcast_to(lacking_one, (len(index), *lacking_one.shape))
        kept = np.concatenate([random, each], axis=1)  # (rows, copies, players)
        rise = np.abs(game.values(part, kept) - outputs[index, None, :])[..., 0]
        moved = ~game.players.columns(kept) * (matrix[index] - game.absent[0])[:, None, :]
        run = np.linalg.norm(moved, axis=2)
        steepest = max(steepest, float(np.max(rise[run > 0] / run[run > 0], initial=0.0)))
    return steepest


def _steepest(inputs: Array, outputs: Array) -> float:
    """The largest slope between any two rows, from (rows, a) to (rows, b)."""
    x, y = torch.from_numpy(inputs), torch.from_numpy(outputs)
    steepest = 0.0
    for start in range(0, len(x), PAIRS_AT_A_TIME):
        # The fast form of cdist loses all digits of small distances, and those give the largest slopes.
        run, rise = (
            torch.cdist(part[start : start + PAIRS_AT_A_TIME], part, compute_mode="donot_use_mm_for_euclid_dist")
            for part in (x, y)
        )
        apart = run > 0
        if bool(apart.any()):
            steepest = max(steepest, float((rise[apart] / run[apart]).max()))
    return steepest


# Rows and their masked copies --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Rows x with one masked copy x~ each."""

    rows: Rows
    masked: Array
    """x~, (rows, columns)."""
    outputs: Array
    outputs_masked: Array

    @property
    def table(self) -> Table:
        return table_of(self.rows, WHO)

    @property
    def gap(self) -> Array:
        """|f(x) - f(x~)|, (rows,)."""
        return np.asarray(np.abs(self.outputs - self.outputs_masked)[:, 0])

    @property
    def norm(self) -> Array:
        """||x||, (rows,)."""
        return np.asarray(np.linalg.norm(self.table.matrix, axis=1))


def _pairs(game: Game, data: Any, how: Positives, count: int, keep: float, seed: int) -> _Pairs:
    rows = game.rows(data)
    table = table_of(rows, WHO)
    if game.evaluations_per_value != 1:
        raise InputError("the theorems speak of masked copies of rows; give the game a reference=, not a background=")
    if game.n_outputs != 1:
        raise InputError(f"the theorems speak of one output, the game has {game.n_outputs}; choose one with target=")
    matrix = table.matrix
    if not np.isfinite(matrix).all():
        raise InputError("distances need numbers: some rows have missing values (NaN); leave them out")
    outputs = game.full_values(rows)
    kept = choose_positives(game, rows, outputs, how=how, count=count, keep=keep, seed=seed, round_=0)
    masked = np.where(game.players.columns(kept), matrix, game.absent[0])
    return _Pairs(rows, masked, outputs, game.outputs_of(Table(masked, table.schema)))


def _labels(
    game: Game, data: Any, pairs: _Pairs, method: str, labels: Explanation | None, progress: bool | None
) -> tuple[Array, Array]:
    """Exact values of the rows and of their copies, (rows, players) each."""
    name, budget = ("exact", None) if method == "shapley" else (method, _all_coalitions(pairs.rows.active))
    if labels is None:
        labels = shapley(game, data, name, row_budget=budget, views=0, progress=progress)
    expected = (len(pairs.rows), game.n_players)
    if labels.values.shape != expected:
        raise InputError(f"labels have shape {labels.values.shape}, expected {expected}: those of the same rows")
    copies = write_table(pairs.masked, pairs.table.schema)
    masked = shapley(game, copies, name, row_budget=budget, views=0, progress=progress)
    for part in (labels, masked):
        noisy = part.error_std is not None and bool(np.any(part.error_std > 0))
        if noisy or (part.exact is not None and not part.exact.all()):
            raise InputError("the theorems need exact values, and some rows were sampled; use fewer players")
    return np.asarray(labels.values, dtype=np.float64), np.asarray(masked.values, dtype=np.float64)


def _all_coalitions(active: BoolArray) -> int:
    """A budget that enumerates every row."""
    return int(2 ** int(active.sum(axis=1).max())) + 1


def _gamma(
    game: Game, pairs: _Pairs, lipschitz: float | None, n_copies: int, keep: float, seed: int
) -> tuple[Array, dict[str, float]]:
    """K_f ||x||, (rows,), and K_f."""
    if lipschitz is None:
        lipschitz = _steepest_model(game, pairs.rows, pairs.outputs, n_copies, keep, seed)
    elif not lipschitz >= 0:
        raise InputError(f"lipschitz must not be negative, got {lipschitz}")
    return lipschitz * pairs.norm, {"lipschitz_model": float(lipschitz), "gap_median": float(np.median(pairs.gap))}


def _right(gap: Array, gamma: Array, n_players: int) -> Array:
    """(1 + sqrt(2) gamma) |f(x) - f(x~)| + sqrt(M) gamma (paper Eq. 3)."""
    return np.asarray((1 + math.sqrt(2) * gamma) * gap + math.sqrt(n_players) * gamma)


def _needed(left: Array, pairs: _Pairs, n_players: int) -> float:
    """The least K_f with which Theorem 1's inequality holds for all rows: what the estimate is to be compared with."""
    slope = pairs.norm * (math.sqrt(2) * pairs.gap + math.sqrt(n_players))
    lacks = np.maximum(left - pairs.gap, 0)
    needed = np.divide(lacks, slope, out=np.where(lacks > 0, math.inf, 0.0), where=slope > 0)
    return float(needed.max())


def _plain_head(explainer: CoRTX) -> AttributionHead:
    """The head, if it is the paper's: a function of the latent explanation alone, normalized over all players."""
    head = explainer.fitted.network.attribution
    if head.config.sees_total or head.config.missing_is_zero:
        raise InputError(
            "Theorem 2 speaks of the paper's head, which sees the latent explanation alone; fit CoRTX(recipe='paper')"
        )
    return head


def _predicted(explainer: CoRTX, matrix: Array, outputs: Array) -> tuple[Array, Array]:
    """The explainer's answer (rows, players) and the latent explanations (rows, latent) of encoded rows.

    Asked of the network itself: `explain` may refuse a masked copy, whose categories need not occur in training.
    """
    network, base_values = explainer.fitted.network, explainer.fitted.spec.base_values
    with torch.inference_mode():
        codes = torch.from_numpy(matrix).to(network.device)
        total = torch.from_numpy(outputs - base_values).to(network.device, torch.float32)
        values = network(codes, total).values[..., 0]
        latent = network.latent(codes)
    return values.to(torch.float64).cpu().numpy(), latent.to(torch.float64).cpu().numpy()


def _centred(values: Array) -> Array:
    """Without the part that the normalization takes from f(x): what remains is a function of the latent alone."""
    return np.asarray(values - values.mean(axis=1, keepdims=True))
