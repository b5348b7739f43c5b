"""`Game`: a model and a reference become v(S), the model's output when only the players in S are present."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from threading import get_ident
from types import MethodType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import CategoricalHint, InputError, ModelError
from cortx.games.absent import OWN, REMOVED, check_image_reference, fixed_image, own_image
from cortx.games.calls import Caller, Calls, Pieces
from cortx.games.ledger import Ledger
from cortx.games.models import AsyncModel, Model, Output, Precision, Shown, adapt, check_removes, checked
from cortx.games.players import Groups, ImagePlayers, Patches, Players, Segments, coalition_words, make_players
from cortx.images import Images, ImageSchema, read_images
from cortx.seeding import numpy_generator
from cortx.tables import (
    FRAMES,
    ROWS_FOR_CODE,
    Matrix,
    Schema,
    Table,
    convert_schema,
    few_whole_values,
    plain,
    read_table,
    reference_row,
    write_table,
)
from cortx.threads import work

BoolArray = npt.NDArray[np.bool_]
Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
P = ParamSpec("P")
T = TypeVar("T")
MIB = 2**20
SMALL_IMAGE = 1_024
"""Numbers of an image below which operations are too small to be shared by threads, which then mostly wait."""
IMAGE_COPIES = 40
"""How many float32 copies of an image a convolutional network holds at a time, about."""
NUMBERS_AT_A_TIME = 2**23
"""Numbers of images that are compared with their reference at a time."""
BLANKS = 3
"""Images on which v(none) is compared where the model removes absent parts by itself."""


def _on_its_threads(method: Callable[Concatenate[Game, P], T]) -> Callable[Concatenate[Game, P], T]:
    """A method that asks the model, with as many of torch's threads as the model's operations are worth."""

    @wraps(method)
    def asked(game: Game, /, *args: P.args, **named: P.kwargs) -> T:
        with work(large=game.large):
            return method(game, *args, **named)

    return asked


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a game, ready to be masked."""

    table: Table | Images
    active: BoolArray
    """(rows, players): false where a player equals its reference, so its presence changes nothing."""
    words: npt.NDArray[np.uint64]
    """One word a row, from its content alone: what seeds the row's random draws."""
    data: Any = field(repr=False)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def undecided(self) -> BoolArray:
        """(rows,): two active players or more. One alone takes the whole total, so its values cannot be wrong."""
        return np.asarray(self.active.sum(axis=1) > 1)

    def take(self, index: npt.NDArray[np.int64]) -> Rows:
        return Rows(self.table.take(index), self.active[index], self.words[index], None)


def table_of(rows: Rows, who: str) -> Table:
    """The rows as the table they are, for methods that know no images."""
    if isinstance(rows.table, Images):
        raise for_tables(who)
    return rows.table


def for_tables(who: str) -> InputError:
    return InputError(f"{who} is for tables; got images")


class Keeper(Protocol):
    """Keeps values that were paid for, and asks a game for the others."""

    def values(self, game: Game, rows: Rows, coalitions: BoolArray) -> Array:
        """v(S) as `Game.values` gives it, (rows, k, outputs)."""


@dataclass(frozen=True, eq=False)
class GameSpec:
    """Everything about a game but its model: what a saved explainer keeps."""

    schema: Schema | ImageSchema
    absent: Any
    """What replaces absent columns, (sample, columns); for an image game (1, numbers), unless `own_reference`. It is
    NaN where the model removes absent parts by itself."""
    players: Players
    output: Output
    target: int | str | None
    frame: str | None
    base_values: Array
    output_names: tuple[str, ...] | None
    own_reference: str | None = None
    """"mean" or "blur": what each image is its own reference by."""
    precision: Precision = None

    @property
    def removes(self) -> bool:
        """Whether the model of an image game leaves absent parts out by itself."""
        return isinstance(self.schema, ImageSchema) and bool(np.isnan(self.absent).all())


class Game:
    """What is explained: a model, what replaces an absent feature, and which output.

    Parameters
    ----------
    model:
        A torch module, a scikit-learn estimator or Pipeline, an XGBoost, LightGBM or CatBoost model, the path of an
        ONNX file, or a function from a table (of the kind you give) to numbers, which may be ``async def``.
    reference:
        A table, which becomes *one* row: its mean, and the mode of categorical columns. Or a single row, or ``"zero"``.
        v(S) costs one evaluation. This is not the average over rows that users of shap know: see `background`. Images:
        ``"zero"``, ``"mean"`` (each image's own mean colour), ``"blur"`` (each image blurred), or an image. Or
        ``"removed"``, for a torch module or a function that leaves absent parts out by itself, such as a vision
        transformer that masks the attention to their tokens: it is called as ``model(images, present)`` with whole
        images and a bool tensor (for a function: array) of shape (images, players), true for the parts that count, in
        the order of the players (patches row by row). With no part present its output must be the same for all images.
    background:
        Instead of `reference`: a sample of rows; v(S) is the average of the model's outputs over them, and costs as
        many evaluations as there are rows. ``background=shap.sample(X, 100)`` means the same as in shap.
    output:
        ``"probability"``, ``"log-odds"`` or ``"raw"``; ``"auto"`` is probability for classifiers, else raw.
    target:
        One class (its label or number), or ``"all"``. By default the positive class of a binary classifier, and
        every output of any other model.
    players:
        Groups of columns that are explained as one, ``{"colour": ["colour_red", "colour_blue"]}``. `Patches` or
        `Segments` make it a game of images: the model is then given images as you give them, as float32.
    categorical:
        Numeric columns (names or numbers) that hold categories; text, category and boolean columns always do. If it is
        not given, columns of few whole numbers raise a `cortx.errors.CategoricalHint`; ``()`` says that there are none.
    frame:
        The kind of table the model is given: "numpy", "pandas", "polars", "pyarrow". By default the kind of the
        reference if that is a frame, else of the rows; pandas where the library takes no other. A scikit-learn
        Pipeline may read missing values otherwise in another kind of frame: give it the kind it was fitted on.
    memory_budget:
        Bytes of masked rows that may exist at a time; by default 64 MiB, for images on a GPU 4 GiB.
    precision:
        ``"float16"`` or ``"bfloat16"``: a torch module on a GPU is run in reduced precision (autocast), which is
        several times as fast; by default as its weights are.
    calls:
        For a slow, remote or paid model: `cortx.Calls`, how many rows a call has, how many calls are under way at a
        time and begin a second, and how often one that fails is repeated. ``async def`` functions get ``Calls()``; any
        other model is by default called from the caller's thread, one call at a time, with as many rows as suit it.
    """

    def __init__(
        self,
        model: Any,
        reference: Any = None,
        *,
        background: Any = None,
        output: Output = "auto",
        target: int | str | None = None,
        players: Groups | Patches | Segments | None = None,
        categorical: Iterable[str | int] | None = None,
        frame: str | None = None,
        memory_budget: int | None = None,
        precision: Precision = None,
        calls: Calls | None = None,
    ) -> None:
        self._layout = players if isinstance(players, (Patches, Segments)) else None
        if isinstance(categorical, str):
            raise InputError(f"categorical must list columns, got {categorical!r}; use [{categorical!r}]")
        self._categorical = () if categorical is None else tuple(categorical)
        self._hinted = categorical is not None
        if players is not None and not isinstance(players, (Patches, Segments, Mapping)):
            raise InputError(
                f"players must be groups of columns, {{name: [columns]}}, or for images cortx.Patches(2) or "
                f"cortx.Segments(map); got {players!r:.100}"
            )
        if self._layout is not None:
            check_image_reference(reference, background)
            if frame is not None or self._categorical:
                given = f"frame={frame!r}" if frame is not None else f"categorical={list(self._categorical)!r}"
                raise InputError(f"{given} is about tables, and this is a game of images; leave it out")
        elif (reference is None) == (background is None):
            raise InputError("give either reference= (a table, a row or 'zero') or background= (a sample of rows)")
        elif isinstance(reference, str) and reference != "zero":
            raise InputError(f"reference must be a table, a row or 'zero', got {reference!r}")
        if frame is not None and frame not in FRAMES:
            raise InputError(f"frame must be one of {', '.join(FRAMES)}, got {frame!r}")
        if memory_budget is not None and memory_budget < MIB:
            raise InputError(f"memory_budget is in bytes and at least {MIB}, got {memory_budget}")
        self.model: Model = adapt(model, output, precision)
        self.removes = self._layout is not None and isinstance(reference, str) and reference == REMOVED
        """Whether the model leaves absent parts out by itself."""
        if self.removes:
            check_removes(self.model)
        self.calls = _calls_of(self.model, calls)
        self._caller = None if self.calls is None else Caller(self.calls)
        self._asked_memory = memory_budget
        large = self._layout is not None and self.device.type != "cpu"
        self.memory_budget = int(memory_budget or (4096 * MIB if large else 64 * MIB))
        self.evaluations = 0
        self.prepared: Any = None
        """What exact tree values made of this game (`cortx.estimators.tree`), for the next call."""
        self.trees_are_slow = False
        """Whether its trees were found to take too long to teach by them (`cortx.training.tree_teacher`)."""
        self._ledgers: list[Ledger] = []
        self._keepers: dict[int, Keeper] = {}
        self._given_model = model
        self._outputs_seen: int | None = None
        self._target = int(target) if isinstance(target, np.integer) else target
        self._groups = None if isinstance(players, (Patches, Segments)) else players
        self._frame = frame
        self.precision: Precision = precision
        self._averaged = 1
        self._schema: Schema | ImageSchema | None = None
        self._absent: Any = None
        self.own_reference = reference if self._layout is not None and _is_own(reference) else None
        self._image_reference = reference if self._layout is not None else None
        if self._layout is not None:
            return
        if background is not None:
            sample = read_table(background, categorical=self._categorical, what="the background")
            if len(sample) == 0:
                raise InputError("the background has no rows; give at least one")
            self._hint(sample)
            self._use(sample)
        elif not isinstance(reference, str):
            table = _reference_table(reference, self._categorical)
            self._hint(table)
            self._averaged = len(table)
            self._use(table if len(table) == 1 else Table(reference_row(table), table.schema))

    @property
    def large(self) -> bool:
        """Whether a pass of the model is worth several of torch's threads: one of small images is not."""
        small = isinstance(self._schema, ImageSchema) and self._schema.n_numbers < SMALL_IMAGE
        return self.model.large and not small

    # What the game knows about its table -----------------------------------------------------------------

    @property
    def of_images(self) -> bool:
        """Whether its rows are images."""
        return self._layout is not None

    @property
    def target(self) -> int | str | None:
        """The class that is explained, as it was asked for."""
        return self._target

    @property
    def device(self) -> torch.device:
        """Where the model is, and masked images are made."""
        return self.model.device

    def _hint(self, table: Table) -> None:
        """Warns, at the first table that can tell, of numeric columns that look like codes of categories."""
        if self._hinted or len(table) < 3 * ROWS_FOR_CODE:
            return
        self._hinted = True
        names = [
            column.name
            for j, column in enumerate(table.schema.columns)
            if not column.categorical and few_whole_values(table.matrix[:, j]) is not None
        ]
        if names:
            shown = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
            warnings.warn(
                f"these columns hold few different whole numbers and are taken as quantities: {shown}. If they are "
                "codes of categories, name them in categorical=[...]: their reference is then the most frequent one, "
                "not a mean of codes; if they are not, categorical=() says so",
                CategoricalHint,
                stacklevel=3,
            )

    @property
    def absent_words(self) -> str:
        """What replaces an absent feature, and what a v(S) costs, in words."""
        each = "1 evaluation for each v(S)"
        if self.removes:
            return f"nothing, the model leaves absent parts out by itself; {each}"
        if self.own_reference is not None:
            return f"each image's own {self.own_reference}; {each}"
        if self._absent is None and self._image_reference is not None and not isinstance(self._image_reference, str):
            return f"one image; {each}"
        if self._absent is None or not self._absent.any():
            return f"zeros; {each}"
        if len(self._absent) > 1:
            n = f"{len(self._absent):,}"
            return f"an average over {n} background rows; {n} evaluations for each v(S)"
        if self._averaged > 1:
            return (
                f"one row, the mean of {self._averaged:,} rows (categories: the mode); {each}. "
                "An average over rows is background=, at as many evaluations as it has rows"
            )
        return f"{'one image' if self.of_images else 'one row'}; {each}"

    def __repr__(self) -> str:
        target = "" if self._target is None else f", target={self._target!r}"
        return f"Game({type(self.model).__name__}, output={self.model.output!r}{target}, absent: {self.absent_words})"

    def _use(self, absent: Table | Images) -> None:
        self._schema, self._absent = absent.schema, absent.matrix
        self.__dict__.pop("players", None)  # their names follow the columns
        self.prepared = None

    @property
    def schema(self) -> Schema | ImageSchema:
        if self._schema is None:
            images = "an image game learns the size from the first images"
            what = images if self.of_images else "reference='zero' learns its columns from the first table"
            raise InputError(f"{what}; call game.rows(X) first")
        return self._schema

    @property
    def absent(self) -> Any:
        """What replaces absent columns: the reference, (1, columns), or the background, (sample, columns).

        NaN where the model removes absent parts by itself.
        """
        _ = self.schema
        return self._absent

    @cached_property
    def players(self) -> Players:
        if self._layout is not None:
            assert isinstance(self.schema, ImageSchema)
            return self._layout.players(self.schema)
        return make_players(self.schema.names, self._groups)

    @property
    def image_players(self) -> ImagePlayers:
        assert isinstance(self.players, ImagePlayers)
        return self.players

    @property
    def n_players(self) -> int:
        return len(self.players)

    @property
    def evaluations_per_value(self) -> int:
        """Model evaluations that one v(S) of one row costs."""
        return len(self.absent)

    @property
    def base_evaluations(self) -> int:
        """Model evaluations that v(none) of the whole game costs, once."""
        return BLANKS if self.removes else self.evaluations_per_value

    @cached_property
    def base_values(self) -> Array:
        """v(empty set), (outputs,): the model's output when every player is absent.

        Where each image is its own reference this is the output for an image of zeros; `empty_values` has the others.
        """
        if self.removes:
            return self._nothing_shown()
        mean: Array = self.outputs_of(self._as_rows(self.absent)).mean(axis=0)
        return mean

    def _nothing_shown(self) -> Array:
        """v(none) of a model that removes absent parts by itself, (outputs,): the same for any image."""
        schema = self.schema
        assert isinstance(schema, ImageSchema)
        low, high = schema.pixels
        blanks = numpy_generator(0, "blanks").uniform(low, high, (BLANKS, schema.n_numbers)).astype(np.float32)
        blanks[0], blanks[1] = low, high
        nobody = torch.zeros((BLANKS, 1, self.n_players), dtype=torch.bool, device=self.device)
        try:
            values = self.values_of(torch.from_numpy(blanks).to(self.device), nobody)[:, 0].double().cpu().numpy()
        except ModelError as error:
            raise ModelError(
                f"with no part present: {error}. v(none) is what the model says without having seen anything, so it "
                "must answer there too: keep a class token that is never masked, or return a constant"
            ) from error
        tolerance = self._tolerance
        if not np.allclose(values, values[0], rtol=tolerance, atol=1e-2 * tolerance):
            raise ModelError(
                f"with no part present the model's output depends on the image: it differs by up to "
                f"{np.ptp(values, axis=0).max():.3g} between {BLANKS} images. With reference='removed' it must leave "
                "out all that is absent, in every layer (mask the attention to absent tokens, and do not pool over "
                "them); reference='zero', 'mean', 'blur' or an image is for models that see whole images"
            )
        return np.asarray(values.mean(axis=0))

    @property
    def _tolerance(self) -> float:
        """Relative: how far two answers of the same model may be apart."""
        return 1e-4 if self.precision is None else 1e-2

    def empty_values(self, rows: Rows) -> Array:
        """v(empty set) of each row, (rows, outputs): the same for all, unless each image is its own reference."""
        return self.empty_of(rows.table)

    def empty_of(self, table: Table | Images) -> Array:
        """The same for rows that were read already."""
        if self.own_reference is None:
            return np.broadcast_to(self.base_values, (len(table), self.n_outputs))
        assert isinstance(table, Images)
        parts = []
        for part in _slices(len(table), max(1, NUMBERS_AT_A_TIME // table.schema.n_numbers)):
            own = own_image(self.own_reference, torch.from_numpy(table.matrix[part]), table.schema).numpy()
            parts.append(self.outputs_of(Images(own, table.schema)))
        return np.concatenate(parts)

    def has_base_values(self, bases: Array) -> bool:
        """Whether v(none) of labels, (rows, outputs), can be this game's; rounding of the model aside."""
        if self.own_reference is not None:
            return True
        tolerance = self._tolerance
        return bool(np.allclose(bases, self.base_values, rtol=tolerance, atol=1e-2 * tolerance))

    @property
    def n_outputs(self) -> int:
        return len(self.base_values)

    @cached_property
    def output_names(self) -> tuple[str, ...] | None:
        """Names of the outputs, when there are several."""
        return self.names_of(self.n_outputs)

    def names_of(self, n_outputs: int) -> tuple[str, ...] | None:
        """The same for a known number of outputs, which asks nothing of the model."""
        names = self.model.class_names
        if n_outputs == 1:
            return None
        return names if names and len(names) == n_outputs else tuple(str(k) for k in range(n_outputs))

    def rows(self, data: Any) -> Rows:
        """Reads and checks rows: columns by name, no infinities, at least one row."""
        data = plain(data)
        if self._layout is not None:
            return self._image_rows(data)
        assert not isinstance(self._schema, ImageSchema)
        table = read_table(data, schema=self._schema, categorical=self._categorical, what="the table")
        if len(table) == 0:
            raise InputError("the table has no rows; give at least one")
        self._hint(table)
        if self._schema is None:
            coded = [column.name for column in table.schema.columns if column.coded]
            if coded:
                raise InputError(f"reference='zero' has no meaning for text columns {coded}; give a row or a table")
            self._use(Table(np.zeros((1, table.matrix.shape[1])), table.schema))
        elif self._schema.frame == "numpy" and table.schema.frame != "numpy":
            self._use(Table(self.absent, table.schema))  # an array has no names: the first frame gives them
        return self._ready(table, data)

    def take_codes(self, schema: Schema) -> None:
        """Reads categories of tables in the codes of `schema` from now on, if it has the same columns and knows all own
        categories; else nothing changes. Values v(S) are the same."""
        own = self._schema
        if not isinstance(own, Schema) or own.names != schema.names:
            return
        pairs = list(zip(own.columns, schema.columns, strict=True))
        if any(a.coded != b.coded or max(a.codes_in(b), default=-1) >= len(b.values) for a, b in pairs):
            return
        absent = Table(self.absent, own).coded_like(schema)
        columns = tuple(replace(a, values=b.values) if a.coded else a for a, b in pairs)
        self._use(Table(absent, replace(own, columns=columns)))

    def with_model(self, model: Any, output: Output = "probability") -> Game:
        """The same image game of another model: the same parts, reference and precision.

        That model is given `masked_images`: where this one removes absent parts by itself, zeros are their reference.
        """
        assert self._layout is not None
        game = Game(
            model, "zero" if self.removes else self._image_reference, output=output, target=self._target,
            players=self._layout, memory_budget=self._asked_memory, precision=self.precision,
        )  # fmt: skip
        if self._schema is not None:
            assert isinstance(self._schema, ImageSchema)
            game._use(Images(fixed_image("zero", self._schema) if self.removes else self.absent, self._schema))
        return game

    def masked_images(self, matrix: torch.Tensor, coalitions: torch.Tensor) -> torch.Tensor:
        """x_S of images on the model's device: (n, numbers), (n, players) bool to (n, numbers).

        Where the model removes absent parts by itself this is what others see, with zeros in their place.
        """
        schema = self.schema
        assert isinstance(schema, ImageSchema)
        if self.removes:
            absent = torch.zeros((1, 1), device=matrix.device)
        elif self.own_reference is None:
            absent = torch.from_numpy(self.absent).to(matrix.device)
        else:
            absent = own_image(self.own_reference, matrix, schema)
        present = coalitions.index_select(1, torch.from_numpy(self.players.column_player).to(matrix.device))
        return torch.where(present, matrix, absent)

    def _image_rows(self, data: Any) -> Rows:
        layout = self._layout
        assert layout is not None
        known = self._schema
        assert known is None or isinstance(known, ImageSchema)
        images = read_images(data, schema=known, channels=layout.channels, pixels=layout.pixels)
        if known is None:
            layout.players(images.schema)  # refuses what does not fit before anything is kept
            self._use(
                Images(
                    fixed_image("zero" if self.own_reference else self._image_reference, images.schema), images.schema
                )
            )
        active = np.ones((len(images), self.n_players), dtype=bool)
        size = max(1, NUMBERS_AT_A_TIME // images.schema.n_numbers)
        for part in () if self.removes else _slices(len(images), size):
            matrix = images.matrix[part]
            absent = self.absent
            if self.own_reference is not None:
                absent = own_image(self.own_reference, torch.from_numpy(matrix), images.schema).numpy()
            active[part] = self.players.any_column(matrix != absent)
        return Rows(images, active, images.row_words(), data)

    def _as_rows(self, matrix: Any) -> Table | Images:
        """Encoded rows with the game's own schema."""
        schema = self.schema
        return Images(matrix, schema) if isinstance(schema, ImageSchema) else Table(matrix, schema)

    def _ready(self, table: Table, data: Any) -> Rows:
        return Rows(table, self.players.any_column(self._differs(table.matrix)), table.row_words(), data)

    def _differs(self, matrix: Matrix) -> BoolArray:
        """(rows, columns): true where a row differs from some absent value."""
        differs = np.zeros(matrix.shape, dtype=bool)
        for absent in self.absent:
            differs |= (matrix != absent) & ~(np.isnan(matrix) & np.isnan(absent))
        return differs

    # Evaluation -------------------------------------------------------------------------------------------

    @contextmanager
    def spending(self, limit: int | None, advice: str = "") -> Iterator[Ledger]:
        """Limits the model evaluations within a ``with`` block: the call that would pass `limit` raises `BudgetError`.

        Blocks may be nested; every limit then holds, for calls of the thread that opened it. `advice` ends the error's
        words.
        """
        ledger = Ledger(limit, advice)
        self._ledgers.append(ledger)
        try:
            yield ledger
        finally:
            self._ledgers.remove(ledger)

    @contextmanager
    def keeping(self, keeper: Keeper) -> Iterator[None]:
        """Within a ``with`` block every v(S) is asked for through `keeper`, a `ValueStore`, which keeps it.

        In the thread that opened the block alone.
        For tables alone: values of images are asked for where the model is, on its device, and are refused here.
        """
        if self.of_images:
            raise InputError(
                "keeping() is for games of tables: images are masked and evaluated on the model's device, and their "
                "values are not kept; leave the block out"
            )
        thread = get_ident()  # other threads that share the game pay for themselves, as with `spending`
        before, self._keepers[thread] = self._keepers.get(thread), keeper
        try:
            yield
        finally:
            if before is None:
                del self._keepers[thread]
            else:
                self._keepers[thread] = before

    def count(self, evaluations: int) -> None:
        """Counts evaluations of the model before they are made; whoever calls the model itself calls this first."""
        self.check_budget(evaluations)  # all ledgers, before any counts
        for ledger in self._own_ledgers():
            ledger.add(evaluations)
        self.evaluations += evaluations

    def check_budget(self, evaluations: int) -> None:
        """Raises `BudgetError` if so many more evaluations would pass a limit; counts nothing."""
        for ledger in self._own_ledgers():
            ledger.check(evaluations)

    def _own_ledgers(self) -> list[Ledger]:
        return [ledger for ledger in tuple(self._ledgers) if ledger.thread == get_ident()]

    def count_kept(self, evaluations: int) -> None:
        """Counts evaluations that were paid for earlier and are used again: against budgets, not as asked."""
        self.count(evaluations)
        self.evaluations -= evaluations

    @property
    def repeated_calls(self) -> int:
        """Calls of the model that failed and were repeated (`Calls.retries`); `evaluations` has their rows once."""
        return 0 if self._caller is None else self._caller.repeated

    @property
    def knows_base_values(self) -> bool:
        """Whether v(none) was paid for already."""
        return "base_values" in self.__dict__

    def full_values(self, rows: Rows) -> Array:
        """v(all players), (rows, outputs): the model's own output."""
        keeper = self._keepers.get(get_ident())
        if keeper is not None:
            return keeper.values(self, rows, rows.active[:, None, :])[:, 0]
        return self.outputs_of(rows.table)

    @_on_its_threads
    def outputs_of(self, table: Table | Images) -> Array:
        """The model's outputs for a table, (rows, outputs), in chunks."""
        result: Array | None = None
        for part in _slices(len(table), self._chunk):
            # A copy: a model that changes its input in place must not change ours.
            outputs = self._predict(table.matrix[part].copy(), table.schema)
            result = np.empty((len(table), outputs.shape[1])) if result is None else result
            result[part] = outputs
        assert result is not None
        return result

    @_on_its_threads
    def values(
        self, rows: Rows, coalitions: BoolArray, *, distinct: bool = False, spent: IntArray | None = None
    ) -> Array:
        """v(S) for every row and coalition, (rows, k, outputs).

        `coalitions` is (k, players) for all rows or (rows, k, players). Coalitions that give a row the same
        masked copy are evaluated once; `distinct` says that there are none, and saves the search. What each row costs
        is added to `spent`, (rows,).
        """
        coalitions = np.asarray(coalitions, dtype=bool)
        shared = coalitions.ndim == 2
        self.check_coalitions(coalitions.shape if not shared else (len(rows), *coalitions.shape), len(rows))
        keeper = self._keepers.get(get_ident())
        if keeper is not None:
            if spent is not None:
                spent += self.evaluations_per_value * self._count_different(rows, coalitions)
            return keeper.values(self, rows, coalitions)
        if not distinct:
            per_row = np.broadcast_to(coalitions, (len(rows), *coalitions.shape[-2:]))
            return self._values_of_distinct(rows, per_row & rows.active[:, None, :], spent)
        k = coalitions.shape[-2]
        if spent is not None:
            spent += self.evaluations_per_value * k
        result = np.empty((len(rows), k, self.n_outputs))
        chunk = self._chunk
        if self._caller is not None:
            per_row = np.broadcast_to(coalitions, (len(rows), *coalitions.shape[-2:]))
            for pairs in _slices(len(rows) * k, chunk):
                row_of, column_of = np.divmod(np.arange(pairs.start, pairs.stop), k)
                result[row_of, column_of] = self.pair_values(rows, row_of, per_row[row_of, column_of])
            return result
        for row_part in _slices(len(rows), max(1, chunk // k)):
            matrix = rows.table.matrix[row_part]
            for k_part in _slices(k, chunk):
                part = coalitions[None, k_part] if shared else coalitions[row_part, k_part]
                result[row_part, k_part] = self._masked(matrix, part, rows.table.schema)
        return result

    def _count_different(self, rows: Rows, coalitions: BoolArray) -> IntArray:
        """How many masked copies of each row differ, (rows,)."""
        per_row = np.broadcast_to(coalitions, (len(rows), *coalitions.shape[-2:]))
        words = np.sort(coalition_words(per_row & rows.active[:, None, :]), axis=1)
        different: IntArray = 1 + (words[:, 1:] != words[:, :-1]).sum(axis=1)
        return different

    def _values_of_distinct(self, rows: Rows, coalitions: BoolArray, spent: IntArray | None) -> Array:
        """Evaluates each row's different coalitions once and copies the results to their duplicates."""
        n, k, _ = coalitions.shape
        words = coalition_words(coalitions)
        order = np.argsort(words, axis=1)
        ordered = np.take_along_axis(words, order, axis=1)
        is_new = np.ones((n, k), dtype=bool)
        is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        if spent is not None:
            spent += self.evaluations_per_value * is_new.sum(axis=1)
        place = np.cumsum(is_new).reshape(n, k) - 1  # of each sorted coalition among the different ones
        inverse = np.empty((n, k), dtype=np.int64)
        np.put_along_axis(inverse, order, place, axis=1)
        row_of, column_of = np.nonzero(is_new)
        column_of = order[row_of, column_of]
        result = np.empty((len(row_of), self.n_outputs))
        for part in _slices(len(row_of), self._chunk):
            result[part] = self.pair_values(rows, row_of[part], coalitions[row_of[part], column_of[part]])
        return result[inverse]

    def pair_values(self, rows: Rows, row_of: IntArray, coalitions: BoolArray) -> Array:
        """v(S) of pairs, row ``row_of[i]`` with coalition i of (pairs, players): (pairs, outputs)."""
        result = np.empty((len(row_of), self.n_outputs))
        with closing(self.answered(rows, row_of, coalitions)) as answered:
            for arrived in answered:
                for part, values in arrived:
                    result[part] = values
        return result

    def answered(self, rows: Rows, row_of: IntArray, coalitions: BoolArray) -> Generator[list[tuple[slice, Array]]]:
        """The same, as the model answers.

        Yields what has arrived since: slices of the pairs, and their values (pairs of the slice, outputs). With `calls`
        a slice is what one call pays for, in any order; else it is a chunk. Close the generator to end calls under way.
        """
        if self._caller is None or self.of_images:
            for part in _slices(len(row_of), self._chunk):
                matrix, masks = rows.table.matrix[row_of[part]], coalitions[part]
                self.check_budget(len(masks) * len(self.absent))
                with work(large=self.large):
                    values = self._masked(matrix, masks[:, None, :], rows.table.schema)
                yield [(part, values[:, 0])]
            return
        pieces = Pieces.of(len(row_of), len(self.absent), self._caller.calls.batch)

        def batches() -> Iterator[Matrix]:
            for number, (pair, absent) in enumerate(pieces.batches()):
                if number % pieces.calls == 0:  # what cannot be paid for as a whole is not begun
                    self.check_budget(pieces.rows(number // pieces.calls))
                present = self.players.columns(coalitions[pair])
                yield np.where(present, rows.table.matrix[row_of[pair]], self.absent[absent])

        waiting: dict[int, dict[int, Array]] = {}
        with closing(self._side_by_side(batches(), rows.table.schema)) as calls:
            for arrived in calls:
                finished = []
                for number, outputs in arrived:
                    piece, position = divmod(number, pieces.calls)
                    parts = waiting.setdefault(piece, {})
                    parts[position] = outputs
                    if len(parts) == pieces.calls:
                        del waiting[piece]
                        whole = np.concatenate([parts[i] for i in range(pieces.calls)])
                        finished.append((pieces.part(piece), pieces.mean(whole)))
                if finished:
                    yield finished

    def _side_by_side(self, batches: Iterator[Any], schema: Schema | ImageSchema) -> Generator[list[tuple[int, Array]]]:
        """The model's outputs for encoded batches, with their numbers, as the calls return."""
        caller, model = self._caller, self.model
        assert caller is not None
        if model.tensor and isinstance(schema, Schema):
            self._need_numbers(schema)

        def counted() -> Iterator[Any]:
            for batch in batches:
                self.count(len(batch))  # in the thread of the ledgers, when the call is about to begin
                yield batch

        def ask(batch: Any) -> Array:
            # A copy: the model may change its input and then fail.
            return checked(model.outputs(self._as_input(batch.copy(), schema)), len(batch))

        with work(large=model.large), model.held():
            asked = caller.answers(
                ask, counted(), unasked=lambda batch: self.count(-len(batch)), cancel=model.cancel,
                timed=isinstance(model, AsyncModel),
            )  # fmt: skip
            with closing(asked):
                for arrived in asked:
                    yield [(number, self._selected(outputs)) for number, outputs in arrived]

    def _all_side_by_side(self, matrix: Any, schema: Schema | ImageSchema) -> Array:
        """The model's outputs for one encoded matrix, (rows, outputs), in calls of `Calls.batch` rows."""
        assert self._caller is not None
        parts = list(_slices(len(matrix), self._caller.calls.batch))
        found: list[Any] = [None] * len(parts)
        with closing(self._side_by_side((matrix[part] for part in parts), schema)) as calls:
            for arrived in calls:
                for number, outputs in arrived:
                    found[number] = outputs
        return np.concatenate(found)

    @_on_its_threads
    def values_of(self, matrix: torch.Tensor, coalitions: torch.Tensor, *, check: bool = True) -> torch.Tensor:
        """v(S) of images, all on the model's device: (n, numbers), (n, k, players) bool to (n, k, outputs) float32.

        Without `check` nobody waits for the device to see whether the values are finite.
        """
        schema, device = self.schema, self.device
        assert isinstance(schema, ImageSchema)
        self.check_coalitions(tuple(coalitions.shape), len(matrix))
        n, k, n_players = coalitions.shape
        masks = coalitions.reshape(n * k, n_players)
        result: torch.Tensor | None = None
        # Parts of equal size: a compiled model is compiled anew for every other one.
        for part in _slices(n * k, -(-n * k // -(-n * k // self._chunk))):
            rows = matrix[torch.arange(part.start, part.stop, device=device) // k]
            if self.removes:
                outputs = self._predict_images(rows, schema, masks[part], check=check)
            else:
                outputs = self._predict_images(self.masked_images(rows, masks[part]), schema, check=check)
            # Not a list of small tensors: each would lie where a masked image was, and the next ones would find no room
            # between them; the memory of a process then grew with the number of values.
            result = torch.empty((n * k, outputs.shape[1]), device=device) if result is None else result
            result[part] = outputs
        assert result is not None
        return result.view(n, k, -1)

    def check_coalitions(self, shape: tuple[int, ...], n_rows: int) -> None:
        if len(shape) != 3 or shape[0] != n_rows or shape[2] != self.n_players:
            raise InputError(
                f"the coalitions have shape {shape}, expected (rows, coalitions, players) = ({n_rows}, any, "
                f"{self.n_players})"
            )

    def _predict_images(
        self, matrix: torch.Tensor, schema: ImageSchema, present: torch.Tensor | None = None, *, check: bool = True
    ) -> torch.Tensor:
        """The model on flat images, (n, outputs) float32 on its device; every evaluation is counted here.

        `present`, (n, players), is for a model that removes absent parts by itself: by default all parts are there.
        """
        n = len(matrix)
        batch: Any = matrix
        if self.removes:
            if present is None:
                present = torch.ones((n, self.n_players), dtype=torch.bool, device=matrix.device)
            batch = Shown(matrix, present)
        if self._caller is not None:
            found = self._all_side_by_side(_in_numpy(batch), schema)
            return torch.from_numpy(found).to(self.device, torch.float32)
        self.count(n)
        if not self.model.tensor:
            outputs = self._selected(self.model(self._as_input(_in_numpy(batch), schema), n))
            return torch.from_numpy(outputs).to(self.device, torch.float32)
        images = matrix.reshape(n, *schema.shape)
        outputs = self.model.tensors(Shown(images, present) if self.removes else images, n).to(torch.float32)
        if check and not bool(torch.isfinite(outputs).all()):
            raise ModelError(
                f"the model returned NaN or infinity for some of {n} masked images; check it on such images"
            )
        chosen: torch.Tensor = self._selected(outputs)
        return chosen

    def _masked(self, matrix: Any, coalitions: BoolArray, schema: Schema | ImageSchema) -> Array:
        """One chunk: x_S = S*x + (1-S)*x_r (paper Sec. 2.1), its outputs averaged over the background."""
        if isinstance(schema, ImageSchema):
            n, (_, k, n_players) = len(matrix), coalitions.shape
            kept = torch.from_numpy(np.ascontiguousarray(coalitions)).to(self.device).expand(n, k, n_players)
            images = torch.from_numpy(matrix).to(self.device)
            return self.values_of(images, kept).double().cpu().numpy()
        dtype, device = self.model.dtype, self.model.device
        present = torch.from_numpy(self.players.columns(coalitions)).to(device)  # (rows or 1, k, columns)
        rows = torch.from_numpy(matrix).to(device, dtype)[:, None, :]
        total: Array | None = None
        for absent in self.absent:
            masked = _fill(present, rows, torch.from_numpy(absent).to(device, dtype))
            n, k, _ = masked.shape
            outputs = self._predict(masked.reshape(n * k, -1), schema).reshape(n, k, -1)
            total = outputs if total is None else total + outputs
        assert total is not None
        return total / len(self.absent)

    def _predict(self, matrix: Any, schema: Schema | ImageSchema) -> Array:
        """The model on encoded rows, (rows, outputs); every evaluation is counted here."""
        if isinstance(schema, ImageSchema):
            return self._predict_images(torch.from_numpy(matrix).to(self.device), schema).double().cpu().numpy()
        if self._caller is not None:
            return self._all_side_by_side(matrix.numpy() if isinstance(matrix, torch.Tensor) else matrix, schema)
        n_rows = int(matrix.shape[0])
        batch = self._as_input(matrix, schema)
        self.count(n_rows)
        outputs: Array = self._selected(self.model(batch, n_rows))
        return outputs

    def _as_input(self, matrix: Any, schema: Schema | ImageSchema) -> Any:
        """Encoded rows as the model takes them: a tensor on its device, the caller's kind of table, or images."""
        if isinstance(matrix, Shown):
            assert isinstance(schema, ImageSchema)
            images, present = matrix.images.reshape(len(matrix), *schema.shape), matrix.present
            if not self.model.tensor:
                return Shown(images, present)
            return Shown(torch.from_numpy(images).to(self.device), torch.from_numpy(present).to(self.device))
        if isinstance(schema, ImageSchema):
            images = matrix.reshape(len(matrix), *schema.shape)
            return torch.from_numpy(images).to(self.device) if self.model.tensor else images
        if self.model.tensor:
            self._need_numbers(schema)
            return torch.as_tensor(matrix).to(self.model.device, self.model.dtype)
        return self.model_table(matrix.numpy() if isinstance(matrix, torch.Tensor) else matrix, schema)

    def _need_numbers(self, schema: Schema) -> None:
        coded = [column.name for column in schema.columns if column.coded]
        if coded:
            raise InputError(
                f"the model takes one matrix of numbers, but these columns hold categories: {coded}; "
                "wrap the model in a function that encodes the frame"
            )

    def model_table(self, matrix: Matrix, schema: Schema) -> Any:
        """Encoded rows as the table that the model is given."""
        return write_table(matrix, self.model_schema(schema))

    def model_schema(self, schema: Schema) -> Schema:
        """The columns of the table that the model is given."""
        allowed = self.model.frames
        return convert_schema(schema, self._frame or (schema.frame if schema.frame in allowed else allowed[0]))

    def _selected(self, outputs: Any) -> Any:
        """`select_outputs` of a call of the model, which must have as many outputs as every other one."""
        if self._outputs_seen not in (None, outputs.shape[1]):
            raise ModelError(
                f"the model returned {outputs.shape[1]} outputs for each row, and {self._outputs_seen} in its first "
                "call; it must return as many for any rows"
            )
        self._outputs_seen = int(outputs.shape[1])
        return self.select_outputs(outputs)

    def select_outputs(self, outputs: Any) -> Any:
        """The outputs that are explained, of an array or a tensor (rows, outputs)."""
        names, target = self.model.class_names, self._target
        of_classes = self.model.output != "raw" or (names is not None and len(names) == 2)
        if target is None:
            return outputs[:, 1:] if outputs.shape[1] == 2 and of_classes else outputs
        if outputs.shape[1] == 1 and of_classes:  # one number stands for both classes
            other = 1 - outputs if self.model.output == "probability" else -outputs
            both = [other, outputs]
            outputs = torch.cat(both, 1) if isinstance(outputs, torch.Tensor) else np.concatenate(both, axis=1)
        n = outputs.shape[1]
        if target == "all":
            return outputs
        if names and len(names) == n and str(target) in names:
            return outputs[:, [names.index(str(target))]]
        # A number that is no label is a position, unless the labels are numbers themselves.
        numbered = names and any(name.lstrip("-").replace(".", "", 1).isdigit() for name in names)
        if isinstance(target, (int, np.integer)) and not numbered and 0 <= target < n:
            return outputs[:, [int(target)]]
        allowed = ", ".join(names) if names else f"0..{n - 1}"
        raise InputError(f"target must be 'all' or one of {allowed}, got {target!r}")

    @property
    def _chunk(self) -> int:
        """Rows for each call of the model: what suits the model, within the memory budget."""
        # A masked row exists as numbers, as the model's table and, inside the model, a few times more.
        if isinstance(self.schema, ImageSchema):
            row_bytes = 4 * self.schema.n_numbers * IMAGE_COPIES
        else:
            row_bytes = 8 * len(self.schema.columns) * 6
        return max(1, min(self.model.chunk_rows, self.memory_budget // row_bytes))

    # Saving and recognising ---------------------------------------------------------------------------------

    def identity(self) -> list[Any]:
        """Arrays and words that tell this game, its model aside, from any other."""
        absent, schema = np.ascontiguousarray(self.absent), self.schema
        if isinstance(schema, Schema) and any(column.coded for column in schema.columns):
            absent = Table(absent, schema).row_words()  # codes mean other categories in other tables
        arrays = [absent, np.ascontiguousarray(self.players.column_player)]
        return [*arrays, *([self.own_reference] if self.own_reference else [])]

    def same_model(self, other: Game) -> bool:
        """Whether the very same model was given to both; its parameters may have changed in between."""
        one, two = self._given_model, other._given_model
        return one is two or (isinstance(one, (str, Path, MethodType)) and bool(one == two))

    def fingerprint(self, matrix: Any, schema: Schema | ImageSchema) -> Array:
        """The model's outputs on encoded probe rows, (rows, outputs), to recognise it again; counted as any others."""
        if self._schema is None:  # nothing was asked of this game yet
            self.rows(write_table(matrix, schema) if isinstance(schema, Schema) else matrix.reshape(-1, *schema.shape))
        return self.outputs_of(Images(matrix, schema) if isinstance(schema, ImageSchema) else Table(matrix, schema))

    def spec(self, schema: Schema | ImageSchema, base_values: Array | None = None) -> GameSpec:
        """The game without its model; `schema` is that of the rows it was used on.

        The model is asked for its base values, unless they are given.
        """
        base = self.base_values if base_values is None else base_values
        return GameSpec(
            schema=schema,
            absent=self.absent,
            players=self.players,
            output=self.model.output,
            target=self._target,
            frame=self._frame,
            base_values=base,
            output_names=self.names_of(len(base)),
            own_reference=self.own_reference,
            precision=self.precision,
        )

    @classmethod
    def from_spec(
        cls,
        model: Any,
        spec: GameSpec,
        memory_budget: int | None = None,
        *,
        known_base: bool = False,
        calls: Calls | None = None,
    ) -> Game:
        """The game of a spec, with a model again; with `known_base` the spec's base values are not asked for again."""
        of_images = isinstance(spec.schema, ImageSchema)
        game = (cls._image_game if of_images else cls._table_game)(model, spec, memory_budget, calls)
        if known_base:
            game.base_values = spec.base_values
        return game

    @classmethod
    def _table_game(cls, model: Any, spec: GameSpec, memory_budget: int | None, calls: Calls | None) -> Game:
        assert isinstance(spec.schema, Schema)
        columns = enumerate(spec.players.names)
        groups = {name: np.flatnonzero(spec.players.column_player == i).tolist() for i, name in columns}
        game = cls(
            model,
            reference="zero",
            output=spec.output,
            target=spec.target,
            players=None if spec.players.names == spec.schema.names else groups,
            categorical=(),  # the schema knows them
            frame=spec.frame,
            memory_budget=memory_budget,
            calls=calls,
        )
        game._use(Table(spec.absent, spec.schema))
        return game

    @classmethod
    def _image_game(cls, model: Any, spec: GameSpec, memory_budget: int | None, calls: Calls | None) -> Game:
        schema, players = spec.schema, spec.players
        assert isinstance(schema, ImageSchema)
        assert isinstance(players, ImagePlayers)
        layout: Patches | Segments
        if players.grid is None:
            layout = Segments(players.pixel_player, channels=schema.channels, pixels=schema.pixels)
        else:
            height, width = (side // count for side, count in zip(schema.size, players.grid, strict=True))
            layout = Patches((height, width), channels=schema.channels, pixels=schema.pixels)
        reference = REMOVED if spec.removes else spec.own_reference or "zero"
        game = cls(
            model, reference, output=spec.output, target=spec.target, players=layout,
            memory_budget=memory_budget, precision=spec.precision, calls=calls,
        )  # fmt: skip
        game._use(Images(spec.absent, schema))
        return game


def _calls_of(model: Model, calls: Calls | None) -> Calls | None:
    if calls is not None and not isinstance(calls, Calls):
        raise InputError(f"calls must be cortx.Calls(...), such as cortx.Calls(workers=8), got {calls!r:.100}")
    if not isinstance(model, AsyncModel):
        return calls
    calls = Calls() if calls is None else calls
    model.timeout = calls.timeout
    return calls


def _in_numpy(batch: torch.Tensor | Shown) -> Any:
    """A batch of images as models outside of torch take it."""
    if isinstance(batch, Shown):
        return Shown(batch.images.cpu().numpy(), batch.present.cpu().numpy())
    return batch.cpu().numpy()


def _is_own(reference: Any) -> bool:
    return isinstance(reference, str) and reference in OWN


def _reference_table(reference: Any, categorical: tuple[str | int, ...]) -> Table:
    """The reference as a table; one row may also be a one-dimensional array or a pandas Series."""
    reference = plain(reference)
    if isinstance(reference, np.ndarray) and reference.ndim == 1:
        reference = reference.reshape(1, -1)
    elif type(reference).__name__ == "Series" and hasattr(reference, "infer_objects"):
        reference = reference.to_frame().T.infer_objects()
    table = read_table(reference, categorical=categorical, what="the reference")
    if len(table) == 0:
        raise InputError("the reference table has no rows; give at least one")
    return table


def _fill(present: torch.Tensor, rows: torch.Tensor, absent: torch.Tensor) -> torch.Tensor:
    """Rows where present, absent elsewhere: (rows or 1, k, columns), (rows, 1, columns), (columns,)."""
    if len(present) < len(rows) and bool(torch.isfinite(rows).all()) and bool(torch.isfinite(absent).all()):
        # Coalitions that rows share: one product and a sum with zeros, exact, and twice as fast as a choice.
        kept = present.to(rows.dtype)
        return torch.addcmul((1 - kept) * absent, kept, rows)
    return torch.where(present, rows, absent)


def _slices(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))
