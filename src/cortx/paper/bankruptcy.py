"""Taiwanese Bankruptcy Prediction (UCI 572): 6,819 companies, 95 financial ratios, 220 bankruptcies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.paper.sources import Table, find, split_rows

Array = npt.NDArray[np.float64]

ROWS = 6_819
FEATURES = 95
EXACT = (4, 5, *range(7, 24), 85, 89, 94, 95)
"""Columns (the label is 0) that were known in full precision when the digest below was taken."""
DECIMALS = 6
"""Public copies were seen to differ after the fifteenth decimal. Rounding to six hides that: no value of the columns
above lies nearer than 1e-11 to where its sixth decimal turns."""
NAMES_DIGEST = "18d4406dcca250ef2937c109b71bbfe1f3118585a89637aa73965d48313ad653"
EXACT_DIGEST = "9be7a3765a5f851fdf13a280e54a792647ed1b21a1c4d1fd06df2d892bbf0bae"
TOLERANCE = 1e-6
WEIGHTED_MEANS = """
    0.5099149409 0.5631880775 0.5580522064 0.9987206944 0.02231776476 0.8479487115 0.6892242629 0.6892249885
    0.217745581 5486080355 1150314.866 0.264263394 0.3803144892 295663.4606 5586928.72 0.6307751669 3661624.311
    0.109259554 0.890740446 0.009557717456 0.3739890519 0.005922673266 0.1109750759 0.1854499011 0.4023388827
    0.1483852699 9752183.116 9088024.069 1907523865 823711159.5 0.0395064262 2019459.208 0.400866368
    13538721.48 0.8207782354 0.437115896 0.5433811102 0.1426246718 2432438.443 25434093.73 0.08969539198
    0.3557203492 0.2773265249 73514318.44 0.7822151286 0.7363052152 0.3311545858 52924844.41 0.9358398924
    0.002698781485 0.0300021088 1054349768 1824250874 0.5940418128 2429109690 0.6715752403 839056.5197
    0.7822151286 0.3311545858 0.1151512428 0.6516695769 0.4625871494 0.5970862316 0.3158747046 0.0294505154
    0.8104757337 19659380.15 0.6239302633 0.8406875962 0.2799747026 0.02712702527 0.5654155922
"""
"""Of every other column, in order, the mean weighted by the row's number (1, 2, ...): it sees values and their order.
"""


Content = tuple[tuple[str, ...], Array, npt.NDArray[np.int8]]


def read_bankruptcy(path: str | Path) -> Content:
    """Names (stripped), features (rows, 95) and labels of `data.csv`, or an InputError if it is not that data set.

    No checksum of the public file is known here: the copy this was built with writes 72 columns to nine decimals only.
    So the content is checked: the names, the number of rows, a SHA-256 of the label and 23 columns to six decimals, and
    for the other 72 columns their weighted means to 1e-6. What is too small to move a mean is not seen there; in a
    column that reaches 1e10 that is much.
    """
    try:
        return parse(Path(path).read_text(encoding="utf-8-sig", errors="replace"))
    except InputError as error:
        raise InputError(
            f"{path} is not the data set Taiwanese Bankruptcy Prediction: {error}; run: cortx paper download bankruptcy"
        ) from error


def parse(text: str) -> Content:
    """`read_bankruptcy` of a file's text; the error says only what is wrong with it."""
    lines = text.splitlines()
    names = tuple(name.strip() for name in lines[0].split(",")) if lines else ()
    if len(names) != 1 + FEATURES or _digest(map(_ascii, names)) != NAMES_DIGEST:
        raise InputError(f"its {len(names)} columns are not the label 'Bankrupt?' and the 95 ratios")
    rows = [line.split(",") for line in lines[1:] if line.strip()]
    if len(rows) != ROWS:
        raise InputError(f"it has {len(rows):,} rows, expected {ROWS:,}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(names):
            raise InputError(f"line {number} has {len(row)} cells, expected {len(names)}")
    try:
        cells = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise InputError(f"a cell is not a number ({error})") from error
    _check_values(names, cells)
    return names[1:], cells[:, 1:], cells[:, 0].astype(np.int8)


def load_bankruptcy(folder: str | Path | None = None, *, tails: float = 0.01) -> Table:
    """5,455 training and 1,364 test rows, standardized by the training rows' mean and deviation; float32.

    The authors' split is not known: this is `split_rows`, the rule of their Census split. Some ratios are 1e10 in a
    few rows and below 1 elsewhere; standardized by training rows without such a row they become 1e12. So every column
    is first limited to its `tails` and 1 - `tails` quantiles in the training rows (0: to their range), which also
    helps the target on validation rows. A column that this would make constant (a rare flag) keeps its range; one
    that is constant in the training rows becomes zero.
    """
    if not 0 <= tails < 0.5:
        raise InputError(f"tails must be at least 0 and below 0.5, got {tails}")
    names, ratios, y = read_bankruptcy(find("bankruptcy", folder))
    train, test = split_rows(len(ratios))
    x = standardize(ratios, train, tails)
    return Table("bankruptcy", x[train], x[test], y[train], y[test], names)


def standardize(x: Array, train: npt.NDArray[np.intp], tails: float) -> npt.NDArray[np.float32]:
    """Limits, centres and scales every column of (rows, features) by what the rows `train` say about it."""
    known = x[train]
    least, most = known.min(axis=0), known.max(axis=0)
    low, high = np.quantile(known, (tails, 1 - tails), axis=0)
    flat = low == high
    low, high = np.where(flat, least, low), np.where(flat, most, high)
    limited = np.clip(x, low, high)
    mean, deviation = limited[train].mean(axis=0), limited[train].std(axis=0)
    constant = least == most  # the computed deviation of equal numbers need not be exactly zero
    scaled = (limited - mean) / np.where(constant, 1.0, deviation)
    return np.where(constant, 0.0, scaled).astype(np.float32)


def _check_values(names: tuple[str, ...], cells: Array) -> None:
    label, exact = cells[:, 0], cells[:, EXACT]
    if not np.isin(label, (0, 1)).all():
        raise InputError("a label is neither 0 nor 1")
    if not np.isfinite(cells).all():
        raise InputError("a cell is not finite")
    lines = (",".join([str(int(y)), *(f"{v:.{DECIMALS}f}" for v in row)]) for y, row in zip(label, exact, strict=True))
    if (found := _digest(lines)) != EXACT_DIGEST:
        raise InputError(f"label and {len(EXACT)} columns have SHA-256 {found}, expected {EXACT_DIGEST}")
    others = [column for column in range(1, 1 + FEATURES) if column not in EXACT]
    for column, expected in zip(others, map(float, WEIGHTED_MEANS.split()), strict=True):
        mean = weighted_mean(cells[:, column])
        if abs(mean - expected) > TOLERANCE * abs(expected):
            raise InputError(f"the weighted mean of {names[column]!r} is {mean:.10g}, expected {expected:.10g}")


def weighted_mean(column: Array) -> float:
    weights = np.arange(1, len(column) + 1)
    return float(column @ weights / weights.sum())


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _ascii(name: str) -> str:
    """The yen sign of two names comes in several encodings."""
    return "".join(character for character in name if character.isascii())
