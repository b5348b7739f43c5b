"""Unbiased values on a device: which sizes are drawn, what a pair weighs, and a regression beside the plain one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from cortx import Game, Patches, shapley
from cortx.estimators.block import Block
from cortx.estimators.kernel_shap import KernelShap, regress, regress_on
from cortx.estimators.unbiased import (
    best_mass,
    contrast_of,
    draw_pairs_on,
    from_pilot,
    pairs_from,
    size_curve,
    unbiased_values,
)
from cortx.games import Rows
from cortx.seeding import torch_generator

Values = Callable[[Tensor], Tensor]


def draws(rows: int, n_pairs: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch_generator(seed, "test")
    offset = torch.rand((rows, 1), generator=generator, dtype=torch.float64)
    return offset, torch.rand((rows, n_pairs, n), generator=generator, dtype=torch.float64)


def bent(n: int, seed: int = 0) -> Values:
    """A game of two outputs with main effects, interactions and saturation; coalitions (..., n) to (..., 2)."""
    generator = torch_generator(seed, "game")
    first, second = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(n, 6), (6, 2)]
    )  # fmt: skip
    return lambda coalitions: torch.tanh(coalitions.double() @ first / np.sqrt(n) * 2 + 0.3) @ second


def uneven(n: int) -> Values:
    """A game whose sizes differ a lot: nothing happens but between one and three players."""

    def values(coalitions: Tensor) -> Tensor:
        sign = torch.where(torch.arange(n) % 2 == 0, 1.0, -1.0).double()
        size = coalitions.sum(dim=-1)
        small = (size > 0) & (size <= 3)
        return ((coalitions.double() @ sign) * small)[..., None]

    return values


def exact(values: Values, n: int) -> np.ndarray:
    """Every order of the players, in a plain loop; (n, outputs)."""
    table = {code: values(torch.tensor([code >> i & 1 for i in range(n)]) > 0).numpy() for code in range(2**n)}
    phi = np.zeros((n, len(table[0])))
    orders = list(permutations(range(n)))
    for order in orders:
        code = 0
        for player in order:
            phi[player] += table[code | 1 << player] - table[code]
            code |= 1 << player
    return phi / len(orders)


def asked(values: Values, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Contrast and total of a game for pairs, (rows, k, outputs) and (rows, outputs)."""
    everybody = torch.ones((len(pairs), pairs.shape[2]), dtype=torch.bool)
    return (values(pairs) - values(~pairs)) / 2, values(everybody) - values(~everybody)


def estimates(
    values: Values, n: int, n_pairs: int, rows: int, mass: Tensor | None, curve: Tensor | None = None
) -> tuple[np.ndarray, np.ndarray]:
    pairs = pairs_from(*draws(rows, n_pairs, n, seed=1), mass)
    found, errors = unbiased_values(pairs, *asked(values, pairs), mass, curve)
    return found.numpy(), errors.numpy()


# Sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 6, 7, 16])
@pytest.mark.parametrize("given", [False, True])
def test_sizes_are_drawn_as_often_as_asked(n: int, given: bool) -> None:
    mass = torch.arange(1.0, n // 2 + 1).square() if given else None
    expected = np.ones(n // 2) if mass is None else mass.numpy().copy()
    if mass is None and n % 2 == 0:
        expected[-1] = 0.5  # two halves make one pair
    expected = expected / expected.sum()
    pairs = pairs_from(*draws(3000, 5, n), mass)
    size = pairs.sum(dim=2).numpy()
    found = np.array([(size == s).mean() for s in range(1, n // 2 + 1)])
    np.testing.assert_allclose(found, expected, atol=0.02)
    for s, share in enumerate(expected, start=1):  # systematic: every row has them in the same proportion
        assert (np.abs((size == s).sum(axis=1) - 5 * share) < 1 + 1e-9).all()


def test_the_even_distribution_is_the_default_one() -> None:
    for n in (7, 8):
        even = torch.tensor([1.0] * ((n - 1) // 2) + [0.5] * (n % 2 == 0)).double()
        offset, keys = draws(50, 20, n)
        pairs = pairs_from(offset, keys)
        assert torch.equal(pairs_from(offset, keys, 3 * even), pairs)
        numbers = asked(bent(n), pairs)
        for default, given in zip(
            unbiased_values(pairs, *numbers), unbiased_values(pairs, *numbers, 3 * even), strict=True
        ):
            torch.testing.assert_close(default, given)


def test_players_of_a_size_are_equals() -> None:
    pairs = pairs_from(*draws(4000, 6, 9), torch.tensor([1.0, 5.0, 1.0, 2.0]))
    often = pairs.double().mean(dim=(0, 1))
    assert float((often - often.mean()).abs().max()) < 0.015


@pytest.mark.parametrize("n", [2, 3, 6, 7])
def test_equal_draws_change_no_size(n: int) -> None:
    """Where keys tie, a coalition keeps its size: a pair of everybody and nobody would weigh infinitely much."""
    offset = torch.zeros(1, 1)
    for keys in (torch.full((1, 40, n), 0.5), torch.full((1, 40, n), 0.5).index_fill(2, torch.tensor([0]), 0.1)):
        pairs = pairs_from(offset, keys)
        size = pairs.sum(dim=2)
        assert int(size.min()) >= 1
        assert int(size.max()) <= n // 2
        contrast, total = asked(bent(n), pairs)
        curve = torch.ones(n // 2, dtype=torch.float64)
        assert bool(torch.isfinite(unbiased_values(pairs, contrast, total, curve=curve)[0]).all())


# Weights and values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 8])
@pytest.mark.parametrize("given", [False, True])
def test_values_and_errors_are_those_of_a_plain_loop(n: int, given: bool) -> None:
    mass = torch.arange(3.0, 3.0 + n // 2) if given else None
    pairs = pairs_from(*draws(4, 10, n), mass)
    contrast, total = asked(bent(n), pairs)
    found, errors = unbiased_values(pairs, contrast, total, mass)
    even = [0.5 if 2 * s == n else 1.0 for s in range(1, n // 2 + 1)]
    drawn = even if mass is None else mass.tolist()
    for row in range(4):
        for output in range(2):
            each = np.zeros((10, n))
            for k in range(10):
                s = int(pairs[row, k].sum())
                weight = n * (n - 1) / (s * (n - s))
                weight *= (even[s - 1] / sum(even)) / (drawn[s - 1] / sum(drawn))
                t = float(contrast[row, k, output]) + (0.5 - s / n) * float(total[row, output])
                for player in range(n):
                    each[k, player] = weight * (float(pairs[row, k, player]) - s / n) * t
            share = float(total[row, output]) / n
            np.testing.assert_allclose(found[row, :, output], share + each.mean(axis=0), atol=1e-12)
            spread = each.std(axis=0, ddof=1) / np.sqrt(10)
            np.testing.assert_allclose(errors[row, :, output], spread, atol=1e-9)


@pytest.mark.parametrize("n", [5, 6])
@pytest.mark.parametrize("masses", [None, "small", "large"])
@pytest.mark.parametrize("n_pairs", [1, 3])
@pytest.mark.parametrize("curved", [False, True])
def test_right_on_average(n: int, masses: str | None, n_pairs: int, curved: bool) -> None:
    """With any guess of what sizes alone say, also a wrong one."""
    rising = torch.arange(1.0, n // 2 + 1) ** 2
    mass = {None: None, "small": rising.flip(0), "large": rising}[masses]
    values = bent(n, seed=n)
    found, _ = estimates(values, n, n_pairs, 20_000, mass, 0.1 * rising - 0.2 if curved else None)
    standard = (found.mean(axis=0) - exact(values, n)) / (found.std(axis=0) / np.sqrt(len(found)))
    assert np.abs(standard).max() < 4
    np.testing.assert_allclose(found.sum(axis=1), found.sum(axis=1)[:1].repeat(len(found), axis=0), atol=1e-9)


@pytest.mark.parametrize("n", [5, 6])
@pytest.mark.parametrize("curved", [False, True])
def test_any_guess_of_the_values_leaves_the_mean(n: int, curved: bool) -> None:
    """Also one that does not add up to the total."""
    values = bent(n)
    right = exact(values, n)
    curve = torch.linspace(-0.4, 0.8, n // 2, dtype=torch.float64) if curved else None
    guess = torch.linspace(-2.0, 3.0, n * right.shape[1], dtype=torch.float64).view(1, n, -1)
    pairs = pairs_from(*draws(20_000, 3, n, seed=2))
    numbers = asked(values, pairs)
    found = unbiased_values(pairs, *numbers, None, curve, guess.expand(20_000, -1, -1))[0].numpy()
    error = found.std(axis=0) / np.sqrt(len(found))
    assert error.max() < 0.05 * np.abs(right).max()
    assert (np.abs(found.mean(axis=0) - right) / error.clip(1e-9)).max() < 5
    np.testing.assert_allclose(found.sum(axis=1), numbers[1].numpy(), atol=1e-9)


def test_what_a_guess_explains_makes_no_variance() -> None:
    """Of an additive game nothing is left; of any other, the values themselves leave least."""
    n = 8
    weights = torch.linspace(-1.0, 2.0, n, dtype=torch.float64)[:, None]

    def additive(kept: Tensor) -> Tensor:
        return kept.double() @ weights

    pairs = pairs_from(*draws(50, 4, n))
    found, errors = unbiased_values(pairs, *asked(additive, pairs), guess=weights.expand(50, -1, -1))
    np.testing.assert_allclose(found, weights.numpy()[None].repeat(50, axis=0), atol=1e-9)
    assert float(errors.max()) < 1e-7
    right = torch.from_numpy(exact(bent(n), n))
    pairs = pairs_from(*draws(20_000, 4, n))
    numbers = asked(bent(n), pairs)
    spread = [
        float(unbiased_values(pairs, *numbers, guess=part * right.expand(20_000, -1, -1))[0].var(dim=0).sum())
        for part in (0.0, 1.0, 2.0)
    ]
    assert spread[1] < 0.95 * min(spread[0], spread[2])


def test_float32_is_as_good_as_its_digits() -> None:
    pairs = pairs_from(*draws(8, 32, 100))
    contrast, total = asked(bent(100), pairs)
    precise = unbiased_values(pairs, contrast, total)
    for one, other in zip(unbiased_values(pairs, contrast.float(), total.float()), precise, strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).abs().max()) < 1e-5 * float(other.abs().max())


# What sizes alone say ------------------------------------------------------------------------------------------------


def saturating(n: int) -> Values:
    """Most of it depends on the size alone, and is there with a few players already."""
    weights = torch.linspace(-1, 1, n, dtype=torch.float64)

    def values(coalitions: Tensor) -> Tensor:
        kept = coalitions.double()
        size = 1 - (-12 * kept.mean(dim=-1)).exp()
        return torch.stack([size + 0.01 * kept @ weights, 0.3 * size], dim=-1)

    return values


def test_the_curve_is_the_mean_by_size() -> None:
    n, values = 40, saturating(40)
    pairs = pairs_from(*draws(500, 16, n, seed=4))
    contrast, total = asked(values, pairs)
    curve = size_curve(pairs, contrast, total).numpy()
    share = np.arange(1, n // 2 + 1) / n
    full = 1 - np.exp(-12)
    expected = (np.exp(-12 * (1 - share)) - np.exp(-12 * share)) / 2 / full + 0.5 - share
    np.testing.assert_allclose(curve[4:-4], expected[4:-4], atol=0.04)  # neighbours are averaged
    assert size_curve(pairs, 0 * contrast, 0 * total).abs().max() == 0


def test_what_sizes_say_makes_no_variance() -> None:
    n, values = 40, saturating(40)
    pairs = pairs_from(*draws(500, 16, n, seed=4))
    sizes = from_pilot(pairs, *asked(values, pairs))
    plain = estimates(values, n, 16, 2000, best_mass(pairs, *asked(values, pairs)))[0].var(axis=0).sum()
    found, errors = estimates(values, n, 16, 2000, *sizes)
    assert found.var(axis=0).sum() < 0.1 * plain
    assert (errors**2).mean() == pytest.approx(found.var(axis=0).mean(), rel=0.5)


def test_what_a_size_says_comes_from_other_pairs_alone() -> None:
    """Only so is it independent of the pair that it corrects."""
    n, curve = 12, torch.tensor([0.4, 0.3, 0.2, 0.1, 0.05, 0.0])
    pairs = pairs_from(*draws(3, 4, n))
    contrast, total = asked(bent(n), pairs)
    found = unbiased_values(pairs, contrast, total, None, curve)[0]
    size = pairs.sum(dim=2)
    for row in range(3):
        for output in range(2):
            t = [
                float(contrast[row, k, output]) + (0.5 - int(size[row, k]) / n) * float(total[row, output])
                for k in range(4)
            ]
            g = [float(curve[int(size[row, k]) - 1]) for k in range(4)]
            belief = 4 * float((curve**2).mean())
            each = np.zeros((4, n))
            for k in range(4):
                others = [j for j in range(4) if j != k]
                a = sum(g[j] * t[j] for j in others) + belief * float(total[row, output])
                a /= sum(g[j] ** 2 for j in others) + belief
                s = int(size[row, k])
                centred = pairs[row, k].double().numpy() - s / n
                each[k] = n * (n - 1) / (s * (n - s)) * centred * (t[k] - a * g[k])
            expected = float(total[row, output]) / n + each.mean(axis=0)
            np.testing.assert_allclose(found[row, :, output], expected, atol=1e-7)


# The best distribution of sizes ------------------------------------------------------------------------------------


def pilot(values: Values, n: int, rows: int = 400, n_pairs: int = 8) -> Tensor:
    pairs = pairs_from(*draws(rows, n_pairs, n, seed=9))
    return best_mass(pairs, *asked(values, pairs))


def test_the_best_distribution_has_less_variance() -> None:
    n, values = 24, uneven(24)
    mass = pilot(values, n)
    even = estimates(values, n, 12, 4000, None)[0].var(axis=0).sum()
    assert estimates(values, n, 12, 4000, mass)[0].var(axis=0).sum() < 0.8 * even
    found, errors = estimates(values, n, 12, 4000, mass)
    assert (errors**2).mean() == pytest.approx(found.var(axis=0).mean(), rel=0.5)


def test_the_best_distribution_does_no_harm_where_sizes_are_alike() -> None:
    n, values = 12, bent(12)
    even = estimates(values, n, 10, 4000, None)[0].var(axis=0).sum()
    assert estimates(values, n, 10, 4000, pilot(values, n))[0].var(axis=0).sum() < 1.05 * even


def test_the_best_distribution_of_an_additive_game_is_the_even_one() -> None:
    """There t = c psi, so E[t^2 | s] is in proportion to s (n-s)."""
    for n in (11, 12):
        weights = torch.linspace(-1, 2, n).double()[:, None]
        mass = pilot(lambda coalitions, w=weights: coalitions.double() @ w, n, rows=5000)  # type: ignore[misc]
        even = np.array([0.5 if 2 * s == n else 1.0 for s in range(1, n // 2 + 1)])
        np.testing.assert_allclose(mass, even / even.sum(), rtol=0.06)


def test_the_best_distribution_follows_the_mean_square_of_each_size() -> None:
    """A pilot of every pair of 8 players: its formula in plain loops, smoothed as little as a few sizes allow."""
    n, values = 8, bent(8, seed=3)
    coalitions = torch.tensor([[code >> i & 1 for i in range(n)] for code in range(1, 2**n - 1)]) > 0
    pairs = coalitions[coalitions.sum(dim=1) <= n // 2][None]
    contrast, total = asked(values, pairs)
    sums, counts = np.zeros(4), np.zeros(4)
    for k in range(pairs.shape[1]):
        s = int(pairs[0, k].sum())
        t = contrast[0, k].numpy() + (0.5 - s / n) * total[0].numpy()
        sums[s - 1] += (t**2).mean() / (s * (n - s))
        counts[s - 1] += 1
    expected = []
    for s in range(4):
        near = [(sums[j], counts[j], 2 if j == s else 1) for j in range(4) if abs(j - s) <= 1]
        ratio = sum(total * w for total, _, w in near) / sum(count * w for _, count, w in near)
        expected.append((0.5 if s == 3 else 1.0) * np.sqrt(ratio))
    np.testing.assert_allclose(best_mass(pairs, contrast, total), np.array(expected) / sum(expected), rtol=1e-9)


def test_no_size_is_forgotten() -> None:
    """Where nothing was seen, or nothing happens, a size keeps a fifth of its even share."""
    n = 64
    even = np.array([1.0] * 31 + [0.5]) / 31.5
    keys = draws(50, 16, n)[1]
    size = torch.where(torch.arange(16) < 8, 2, 20)  # two sizes of 32 are seen
    pairs = keys.argsort(dim=2).argsort(dim=2) < size[None, :, None]
    contrast = torch.where(size == 2, 1.0, 0.0).double().expand(50, 16)[..., None]
    total = torch.zeros((50, 1), dtype=torch.float64)
    mass = best_mass(pairs, contrast, total).numpy()
    assert mass.sum() == pytest.approx(1)
    assert (mass >= 0.2 * even - 1e-12).all()
    assert mass[19] == pytest.approx(0.2 * even[19])
    np.testing.assert_allclose(mass[:2] / even[:2], mass[1] / even[1])  # as its nearest neighbour
    assert (np.diff(mass / even) <= 1e-12).all()  # down from size 2 to size 20, and it stays there
    np.testing.assert_allclose(best_mass(pairs, 0 * contrast, total), even)


# The regression ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "n_pairs"),
    [(7, 25), (12, 200), (70, 90), (70, 300), (70, 40)],  # the last one: fewer equations than unknowns
)
def test_the_regression_is_the_plain_one(n: int, n_pairs: int) -> None:
    pairs = pairs_from(*draws(5, n_pairs, n))
    contrast, total = asked(bent(n), pairs)
    values, errors = (part.numpy() for part in regress_on(pairs, contrast, total))
    coalitions = pairs.numpy()
    size = coalitions.sum(axis=2)
    design = coalitions - size[..., None] / n
    target = contrast.numpy() + (0.5 - size / n)[..., None] * total.numpy()[:, None, :]
    psi, expected = regress(design, target, 1 / (size * (n - size)), np.zeros(size.shape))
    np.testing.assert_allclose(values, psi + total.numpy()[:, None, :] / n, atol=1e-9)
    np.testing.assert_allclose(errors, expected, atol=1e-9, equal_nan=True)
    assert np.isnan(errors).all() == (n_pairs < n)


def test_rows_of_all_kinds_are_solved_side_by_side() -> None:
    """A row that saw one pair only, over and over, does not disturb the others."""
    pairs = pairs_from(*draws(3, 40, 9))
    pairs[1] = pairs[1, :1]
    contrast, total = asked(bent(9), pairs)
    values, errors = regress_on(pairs, contrast, total)
    alone = regress_on(pairs[[0, 2]], contrast[[0, 2]], total[[0, 2]])
    torch.testing.assert_close(values[[0, 2]], alone[0])
    torch.testing.assert_close(errors[[0, 2]], alone[1])
    assert bool(values.isfinite().all())
    assert bool(errors[1].isnan().all())


# Image games -------------------------------------------------------------------------------------------------------


def network(n_channels: int = 1) -> nn.Module:
    generator = torch_generator(4, "network")
    net = nn.Sequential(nn.Conv2d(n_channels, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 18 * 18, 3))
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.15, generator=generator)
    return net.eval()


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).random((count, 1, 18, 18)).astype(np.float32)


@pytest.mark.parametrize("reference", ["zero", "blur"])
def test_kernel_of_many_patches_finds_what_the_old_path_finds(reference: str) -> None:
    game = Game(network(), reference=reference, players=Patches(2), output="raw")  # 81 players
    X = images(2)
    X[1, :, :2, :4] = 0  # two players that may equal their reference
    device = shapley(game, X, "kernel", row_budget=2001)
    assert device.error_std is not None
    plain = shapley(game, X, KernelShap("kernel"), row_budget=2001)
    assert plain.error_std is not None
    away = np.abs(device.values - plain.values) / np.sqrt(device.error_std**2 + plain.error_std**2 + 1e-18)
    assert (away < 2).mean() > 0.9
    assert away.max() < 6
    # Pairs are even: beside v(all) and, where each image is its own reference, v(none), one evaluation is left over.
    each = 2001 if reference == "zero" else 2000
    assert device.evaluations == 2 * each + 1  # and an image of zeros
    total = np.asarray(device.outputs) - device.base_values
    np.testing.assert_allclose(device.values.sum(axis=1), total, atol=1e-6)
    if reference == "zero":
        assert (device.values[1, :2] == 0).all()


@pytest.mark.parametrize("method", ["kernel", "unbiased"])
def test_an_image_depends_on_itself_alone(method: str) -> None:
    X = images(5)

    def label(rows: np.ndarray, memory_budget: int | None = None) -> np.ndarray:
        game = Game(network(), reference="zero", players=Patches(2), output="probability", memory_budget=memory_budget)
        values: np.ndarray = shapley(game, rows, method, row_budget=401, seed=3).values
        return values

    whole = label(X)
    np.testing.assert_allclose(label(X[::-1]), whole[::-1], atol=1e-6)
    np.testing.assert_allclose(label(X[3:4]), whole[3:4], atol=1e-6)
    np.testing.assert_allclose(label(X, memory_budget=2**20), whole, atol=1e-6)


def test_values_on_the_device_are_those_of_the_game() -> None:
    game = Game(network(), reference="zero", players=Patches(3), output="raw")
    X = images(3)
    X[:, :, :3, :6] = 0  # two players of 36 are the reference
    rows = game.rows(X)
    active = np.nonzero(rows.active)[1].reshape(3, -1)
    block = Block(game, rows, active, game.full_values(rows), seed=5)
    pairs = draw_pairs_on(block, 7)
    assert pairs.shape == (3, 7, 34)
    values = block.values(np.concatenate([pairs.numpy(), ~pairs.numpy()], axis=1), distinct=False)
    np.testing.assert_allclose(contrast_of(block, pairs), (values[:, :7] - values[:, 7:]) / 2, atol=1e-6)


class Linear:
    """A student that learned a model's main effects: the least squares of its outputs."""

    def __init__(self, game: Game, table: npt.NDArray[np.float64]) -> None:
        matrix, self.absent = np.column_stack([table, np.ones(len(table))]), game.absent[0]
        self.slopes = np.linalg.lstsq(matrix, game.outputs_of(game.rows(table).table)[:, 0], rcond=None)[0][:-1]

    def shapley(self, rows: Rows) -> npt.NDArray[np.float64]:
        return np.asarray((self.slopes * (rows.table.matrix - self.absent) * rows.active)[..., None])

    def values(self, rows: Rows, coalitions: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        return np.asarray((coalitions * self.shapley(rows)[:, None, :, 0]).sum(axis=2)[..., None])


@pytest.fixture(scope="module")
def diabetes() -> tuple[Game, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A network on ten columns, three rows many times over (no two are equal), and their Shapley values."""
    from sklearn.datasets import load_diabetes
    from sklearn.neural_network import MLPRegressor

    table, target = load_diabetes(return_X_y=True)
    table = 20 * table
    model = MLPRegressor(hidden_layer_sizes=(24,), alpha=0.01, max_iter=100, random_state=0)
    game = Game(model.fit(table, (target - 150) / 80).predict, reference=table, categorical=())
    some = table[[3, 100, 321]]
    rows = np.repeat(some, 1_500, axis=0) + 1e-6 * np.random.default_rng(0).normal(size=(4_500, 10))
    return game, rows, np.repeat(shapley(game, some, "exact", views=0, progress=False).values, 1_500, axis=0)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("values", [8, 16, 32, 200])
def test_the_variance_of_a_real_model_is_known(diabetes: Any, values: int, taught: bool) -> None:
    """Sizes are drawn systematically and the variance takes them for independent: the difference is small."""
    game, rows, truth = diabetes
    found = shapley(
        game, rows, "unbiased", row_budget=values + 1, views=0, seed=0, progress=False,
        student=Linear(game, rows) if taught else None,
    )  # fmt: skip
    assert found.variance is not None
    squares = np.square(found.values - truth).reshape(3, 1_500, 10).mean(axis=1)
    ratio = found.variance.reshape(3, 1_500, 10).mean(axis=1) / squares
    np.testing.assert_allclose(ratio.mean(axis=1), 1, atol=0.06)
