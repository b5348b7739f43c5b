"""Interactions of three players, learned from pairs of coalitions, as a control variate of KernelSHAP's regression.

With signs z = +1 for present and -1 for absent players, half the difference between a coalition and its complement is
a sum over sets T of odd size of coefficients times z_T, the product of the signs of T; sets of even size cancel. The
Shapley values of z_T are 2/|T| for its members, and so those of

    d_T(S) = z_T - (mean of z over T)

are zero for everybody: a regression on the players alone, after sums of c_T d_T were taken from its targets, is as
right as before whatever the coefficients are, if they do not come from the pair they are taken from. What is taken
makes its noise smaller: models are full of interactions of few players (a tree of depth 4 has no others). Regression on
odd interactions is due to Fumagalli et al. 2026 (OddSHAP). Here coefficients are Gaussian, c_T ~ N(0, variance_T), with
variances (most of them zero in the end) that make the pairs of a few rows likely (automatic relevance determination,
MacKay 1992), and every pair has the coefficients that all others of its row give.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

CANDIDATES = 1_000
"""Interactions that are weighed against each other, at most."""
MOST_TERMS = 384
"""Interactions that are kept, at most."""
PAIRS_PER_TERM = 3
"""Of a row, at least."""
SCREENED_PAIRS = 384
"""Pairs of each row and half that variances are learned from, at most."""
SCREENED_PLAYERS = 64
"""Interactions are looked for among so many players, those with the largest values; 41,664 sets of three."""
ROUNDS, LAST_ROUNDS = 5, 2
"""Of learning variances; the last ones with the interactions that are kept."""
FIRST_NOISE = 0.3
"""The share of what players alone do not explain that is noise, before anything is learned."""
SCREENING_NOISE = 0.1
"""The same over the mean eigenvalue of the kernel by which candidates are found."""
SMALLEST_NOISE = 1e-6
NEGLIGIBLE = 1e-5
"""Of the largest variance: interactions below are dropped."""
ADDITIVE = 1e-9
"""Of a target's size: what is left below is rounding."""
NUMBERS_AT_A_TIME = 2**22
"""Of interactions and pairs: 32 MiB, a few times over."""


class Pairs(NamedTuple):
    """Evaluated pairs of rows with equally many active players, as `kernel_shap.paired` has them."""

    coalitions: BoolArray
    """(rows, pairs, n)."""
    active: IntArray
    """(rows, n) the active players of each row."""
    target: Array
    """(rows, pairs, outputs)."""
    weight: Array
    """(rows, pairs), of the regression."""
    inclusion: Array
    """(rows, pairs): how likely each pair was to be drawn."""
    n_all: int
    """Players of the game."""

    @property
    def design(self) -> Array:
        """(rows, pairs, n), of the regression on players alone."""
        return np.asarray(self.coalitions - self.coalitions.mean(axis=2, keepdims=True))

    def rows(self, index: IntArray | slice) -> Pairs:
        return Pairs(
            self.coalitions[index], self.active[index], self.target[index], self.weight[index], self.inclusion[index],
            self.n_all,
        )  # fmt: skip

    def pairs(self, index: IntArray | slice) -> Pairs:
        return self._replace(
            coalitions=self.coalitions[:, index], target=self.target[:, index], weight=self.weight[:, index],
            inclusion=self.inclusion[:, index],
        )  # fmt: skip

    def signs(self) -> Array:
        """(rows, players, pairs): 1 for present, -1 for absent, 0 for players that are not active."""
        signs = np.zeros((len(self.active), self.n_all, self.coalitions.shape[1]))
        np.put_along_axis(signs, self.active[..., None], 2.0 * self.coalitions.transpose(0, 2, 1) - 1, axis=1)
        return signs

    @staticmethod
    def concatenate(parts: list[Pairs]) -> Pairs:
        coalitions = np.concatenate([part.coalitions for part in parts])
        active = np.concatenate([part.active for part in parts])
        target, weight, inclusion = (np.concatenate([part[i] for part in parts]) for i in (2, 3, 4))
        return Pairs(coalitions, active, target, weight, inclusion, parts[0].n_all)


class Terms(NamedTuple):
    """Interactions and what is expected of their coefficients, for targets whose rest has a mean square of one."""

    players: IntArray
    """(terms, 3)."""
    variance: Array
    """(terms,)."""
    noise: float
    """The variance of what they leave."""


class Screen(NamedTuple):
    """What the pairs of a few rows taught; None where nothing is left to learn."""

    halves: tuple[Terms | None, Terms | None]
    """From the pairs in even places, and from those in odd places: rows that taught use the half a pair is not in."""
    both: Terms | None
    """For all other rows."""


def screen(pairs: Pairs) -> Screen:
    """Finds the interactions that matter to these rows."""
    n_terms = pairs.coalitions.shape[1] // PAIRS_PER_TERM
    halves = _learn(_half(pairs, 0), n_terms), _learn(_half(pairs, 1), n_terms)
    return Screen(halves, _merged(halves))


def beyond_players(pairs: Pairs, found: Screen, taught: BoolArray) -> tuple[Array, Array]:
    """What interactions say of every pair of every row: to be taken from the targets. And what players leave of them.

    Both (rows, pairs, outputs). No pair has a say in its own. `taught` (rows,): whether `found` was learned from the
    row. Zero for a row and output whose pairs are not predicted better by it.
    """
    taken, before = np.zeros_like(pairs.target), np.zeros_like(pairs.target)
    for own in np.unique(taught):
        rows = np.flatnonzero(taught == own)
        whole = found.halves[0] if own else found.both
        n_terms = max([len(terms.players) for terms in (*found.halves, found.both) if terms is not None], default=1)
        step = max(1, NUMBERS_AT_A_TIME // (pairs.coalitions.shape[1] * n_terms))
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            fitted = _Players.of(pairs.rows(some))
            said, missed = fitted.left_out(pairs.rows(some), whole)
            if own:  # what the even places taught is for the odd ones, and the other way round
                other = fitted.left_out(pairs.rows(some), found.halves[1])
                said[:, ::2], missed[:, ::2] = other[0][:, ::2], other[1][:, ::2]
            better = np.square(missed).sum(axis=1) < np.square(fitted.missed).sum(axis=1)
            taken[some] = said * better[:, None, :]
            before[some] = fitted.missed * fitted.scale[:, None, :] / fitted.root[..., None]
    return taken, before


class _Players(NamedTuple):
    """The regression on players alone, with weights that are one on average: what is left for interactions."""

    root: Array
    """(rows, pairs), of the weights."""
    basis: Array
    """(rows, pairs, n) orthonormal columns that span the weighted design, or zeros."""
    left: Array
    """(rows, pairs, outputs) what the players leave of the weighted target, over `scale`; zero of additive games."""
    scale: Array
    """(rows, outputs)."""
    values: Array
    """(rows, n, outputs) psi, over `scale`."""

    @staticmethod
    def of(pairs: Pairs) -> _Players:
        root = np.sqrt(pairs.weight / pairs.weight.mean(axis=1, keepdims=True))
        basis, s, axes = np.linalg.svd(pairs.design * root[..., None], full_matrices=False)
        spans = s > 1e-9 * s.max(axis=1, keepdims=True)
        basis = basis * spans[:, None, :]
        target = pairs.target * root[..., None]
        along = basis.transpose(0, 2, 1) @ target
        left = target - basis @ along
        left -= basis @ (basis.transpose(0, 2, 1) @ left)  # once more, for rounding
        freedom = np.maximum(root.shape[1] - spans.sum(axis=1), 1)[:, None]
        scale = np.sqrt(np.square(left).sum(axis=1) / freedom)
        additive = scale <= ADDITIVE * np.sqrt(np.square(target).mean(axis=1))
        scale = np.where(additive, 1.0, scale)
        left = np.where(additive[:, None, :], 0.0, left / scale[:, None, :])
        values = axes.transpose(0, 2, 1) @ (along / np.where(spans, s, 1.0)[..., None])
        return _Players(root, basis, left, scale, values / scale[:, None, :])

    @property
    def leverage(self) -> Array:
        """(rows, pairs)."""
        return np.asarray(np.square(self.basis).sum(axis=2))

    @property
    def missed(self) -> Array:
        """(rows, pairs, outputs): by how much the players alone, fitted to all other pairs, miss each pair."""
        return self.left / np.maximum(1 - self.leverage, 1e-6)[..., None]

    def take(self, row: int) -> _Players:
        return _Players(*(part[row : row + 1] for part in self))

    def left_out(self, pairs: Pairs, terms: Terms | None) -> tuple[Array, Array]:
        """What interactions say of each pair, in units of the target, and by how much all miss it, over `scale`.

        Both (rows, pairs, outputs), with coefficients fitted to all pairs but the one in question: if y is replaced by
        its prediction from all others, y - missed, the fit is that of all others. As far as a pair is drawn for certain
        it counts like the others: of what all pairs are taken from, their own fit must have no Shapley values.
        """
        if terms is None:
            return np.zeros_like(self.left), self.missed
        n_pairs, n_terms = self.root.shape[1], len(terms.players)
        step = max(1, NUMBERS_AT_A_TIME // n_terms)
        chunks = [slice(start, start + step) for start in range(0, n_pairs, step)]
        gram = np.zeros((len(self.root), n_terms, n_terms))
        along = np.zeros((len(self.root), n_terms, self.basis.shape[2]))
        right = np.zeros((len(self.root), n_terms, self.left.shape[2]))
        for here in chunks:
            raw = self._interactions(pairs, terms, here)
            gram += raw @ raw.transpose(0, 2, 1)
            along += raw @ self.basis[:, here]
            right += raw @ self.left[:, here]
        gram -= along @ along.transpose(0, 2, 1)
        root = np.sqrt(terms.variance / terms.noise)
        inverse = np.linalg.inv(gram * root[:, None] * root + np.eye(n_terms)) * root[:, None] * root
        coefficients = inverse @ right  # (rows, terms, outputs)
        said, missed = np.empty_like(self.left), np.empty_like(self.left)
        for here in chunks:
            raw = self._interactions(pairs, terms, here)
            beyond = raw - along @ self.basis[:, here].transpose(0, 2, 1)
            influence = inverse @ beyond  # (rows, terms, pairs): how much each pair moves each coefficient
            leverage = (influence * beyond).sum(axis=1) + self.leverage[:, here]
            rest = self.left[:, here] - beyond.transpose(0, 2, 1) @ coefficients
            missed[:, here] = rest / np.maximum(1 - leverage, 1e-12)[..., None]
            chance = np.maximum(1 - pairs.inclusion[:, here], 0.0)
            own = ((influence * raw).sum(axis=1) * chance)[..., None] * missed[:, here]
            said[:, here] = raw.transpose(0, 2, 1) @ coefficients - own
        return said * self.scale[:, None, :] / self.root[..., None], missed

    def _interactions(self, pairs: Pairs, terms: Terms, here: slice) -> Array:
        return interactions(pairs.pairs(here).signs(), terms.players) * self.root[:, None, here]


def interactions(signs: Array, players: IntArray) -> Array:
    """d_T of every set T, (rows, terms, pairs); zero where one of T is not active."""
    first, second, third = (signs[:, players[:, i]] for i in range(3))
    product = first * second * third
    first += second
    first += third
    first *= np.abs(product) / 3
    product -= first
    return product


def _half(pairs: Pairs, start: int) -> Pairs:
    """Every second pair (they are in order of size), at most `SCREENED_PAIRS` of them."""
    places = np.arange(start, pairs.coalitions.shape[1], 2)
    if len(places) > SCREENED_PAIRS:
        places = places[np.arange(SCREENED_PAIRS) * len(places) // SCREENED_PAIRS]
    return pairs.pairs(places)


def _learn(pairs: Pairs, n_terms: int) -> Terms | None:
    """Interactions with variances that make these pairs likely; None where the players explain everything."""
    fitted = _Players.of(pairs)
    alive = np.flatnonzero(fitted.left.any(axis=(1, 2)))
    if len(alive) == 0:
        return None
    pairs, fitted = pairs.rows(alive), _Players(*(part[alive] for part in fitted))
    players = _candidates(pairs, fitted)
    variance, noise = np.full(len(players), (1 - FIRST_NOISE) / len(players)), FIRST_NOISE
    tasks = float(fitted.left.any(axis=1).sum())  # rows and outputs
    for round_ in range(ROUNDS):
        squares, known, rest, freedom = np.zeros(len(players)), np.zeros(len(players)), 0.0, 0.0
        for row in range(len(alive)):
            found = _second_moments(pairs.rows(slice(row, row + 1)), fitted.take(row), players, variance, noise)
            squares, known = squares + found[0], known + found[1]
            rest, freedom = rest + found[2], freedom + found[3]
        # Expectation maximisation once, as it forgets no interaction too early; then MacKay's faster update.
        expected = (squares + variance * (tasks - known)) / tasks
        variance = expected if round_ == 0 else squares / np.maximum(known, 1e-9)
        noise = max(float(rest / max(freedom, 1.0)), SMALLEST_NOISE)
        kept = np.argsort(-variance, kind="stable")
        kept = kept[variance[kept] > NEGLIGIBLE * variance.max()]
        if round_ >= ROUNDS - LAST_ROUNDS - 1:
            kept = kept[: min(MOST_TERMS, n_terms)]
        players, variance = players[kept], variance[kept]
    return Terms(players, variance, noise)


def _second_moments(
    pairs: Pairs, fitted: _Players, players: IntArray, variance: Array, noise: float
) -> tuple[Array, Array, float, float]:
    """Of one row, summed over outputs: squared coefficients and how well each is known (0 to 1), (terms,) each.

    And what is left in squares, with its degrees of freedom.
    """
    raw = interactions(pairs.signs(), players)[0] * fitted.root[0]
    basis, left = fitted.basis[0], fitted.left[0]
    beyond = raw - (raw @ basis) @ basis.T  # (terms, pairs)
    n_terms, n_pairs = beyond.shape
    if n_terms < n_pairs:
        root = np.sqrt(variance)
        gram = (beyond @ beyond.T) * root[:, None] * root / noise + np.eye(n_terms)
        inverse = np.linalg.inv(gram)
        coefficients = root[:, None] * (inverse @ (root[:, None] * (beyond @ left))) / noise
        known = 1 - np.diag(inverse)
    else:
        kernel = (beyond.T * variance) @ beyond + noise * np.eye(n_pairs)
        inverse = np.linalg.inv(kernel)
        coefficients = variance[:, None] * (beyond @ (inverse @ left))
        known = variance * ((beyond @ inverse) * beyond).sum(axis=1)
    outputs = int(left.any(axis=0).sum())
    rest = np.square(left - beyond.T @ coefficients).sum()
    freedom = n_pairs - fitted.leverage.sum() - known.sum()
    return np.square(coefficients).sum(axis=1), outputs * known, float(rest), float(outputs * freedom)


def _candidates(pairs: Pairs, fitted: _Players) -> IntArray:
    """Sets of three players, (terms, 3), that a model with equal variances for all finds most of, in all rows."""
    some = _strongest(pairs, fitted)
    scores = np.zeros((len(some), len(some), len(some)))
    signs = pairs.signs()[:, some]
    for row in range(len(signs)):
        z, root, basis = signs[row], fitted.root[row], fitted.basis[row]
        overlap = z.T @ z
        # The third elementary symmetric polynomial of products of signs.
        kernel = (overlap**3 - (3 * np.abs(z[:, 0]).sum() - 2) * overlap) / 6 * root[:, None] * root
        kernel -= basis @ (basis.T @ kernel)
        kernel -= (kernel @ basis) @ basis.T
        kernel[np.diag_indices_from(kernel)] += SCREENING_NOISE * np.trace(kernel) / len(kernel)
        for surprise in (np.linalg.solve(kernel, fitted.left[row]) * root[:, None]).T:
            for i in range(len(some)):
                scores[i] += np.square((z * (surprise * z[i])) @ z.T)
    triples = _triples(len(some))
    score = scores[triples[:, 0], triples[:, 1], triples[:, 2]]
    best = np.argsort(-score, kind="stable")[:CANDIDATES]
    return some[triples[best]]


def _strongest(pairs: Pairs, fitted: _Players) -> IntArray:
    """The players among whom interactions are looked for, in order."""
    strength = np.zeros(pairs.n_all)
    np.add.at(strength, pairs.active, np.square(fitted.values).sum(axis=2))
    present = np.unique(pairs.active)
    best = present[np.argsort(-strength[present], kind="stable")[:SCREENED_PLAYERS]]
    return np.sort(best)


@lru_cache(maxsize=16)
def _triples(n: int) -> IntArray:
    return np.array(list(combinations(range(n), 3)), dtype=np.int64).reshape(-1, 3)


def _merged(halves: tuple[Terms | None, Terms | None]) -> Terms | None:
    """The mean of what both halves say; an interaction that one of them dropped has no variance there."""
    known = [terms for terms in halves if terms is not None]
    if not known:
        return None
    players, place = np.unique(np.concatenate([terms.players for terms in known]), axis=0, return_inverse=True)
    variance = np.zeros(len(players))
    np.add.at(variance, place.ravel(), np.concatenate([terms.variance for terms in known]) / len(known))
    kept = np.argsort(-variance, kind="stable")[: max(len(terms.players) for terms in known)]
    return Terms(players[kept], variance[kept], float(np.mean([terms.noise for terms in known])))
