"""Adapters: any model as a function from a batch of rows to finite numbers, (rows, outputs)."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import ClippedOutputs, InputError, ModelError, need
from cortx.games.event_loop import EventLoop
from cortx.onnx_files import check_own_folder
from cortx.tables import FRAMES
from cortx.threads import torch_threads

Output = Literal["auto", "probability", "log-odds", "raw"]
Precision = Literal["float16", "bfloat16"] | None
OUTPUTS: tuple[str, ...] = ("auto", "probability", "log-odds", "raw")
Array = npt.NDArray[np.float64]

# Probabilities are kept this far from 0 and 1 before their log-odds are taken: within -16.1 and 16.1.
LOG_ODDS_MARGIN = 1e-7
LARGE_WEIGHT = 2**16
"""Numbers in a weight from which several threads gain: 4,096 rows through it take a core some ten milliseconds."""


@dataclass(frozen=True, eq=False)
class Shown:
    """Whole images, and which of their parts count: what a model is given that leaves absent parts out by itself."""

    images: Any
    present: Any
    """(images, players) bool, in the order of the players."""

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, part: slice) -> Shown:
        return Shown(self.images[part], self.present[part])

    def copy(self) -> Shown:
        return Shown(self.images.copy(), self.present.copy())


def arguments_of(batch: Any) -> tuple[Any, ...]:
    """What a model is called with for a batch."""
    return (batch.images, batch.present) if isinstance(batch, Shown) else (batch,)


class Model(ABC):
    """A model under explanation. `tensor` models take a torch tensor, the others the caller's own table.

    Where absent parts of images are removed they take `Shown`, as two arguments.
    """

    tensor: bool = False
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")
    chunk_rows: int = 32_768
    """Rows per call at which the model runs well; a memory budget may lower it."""
    class_names: tuple[str, ...] | None = None
    frames: tuple[str, ...] = FRAMES
    """The kinds of table it takes; rows of another kind are converted to the first."""
    _told_of_clipping = False
    large: bool = True
    """Whether its operations are large enough to be shared by torch's threads (`cortx.threads`)."""

    def __init__(self, output: Output) -> None:
        self.output: Output = output

    def log_odds(self, probability: Array) -> Array:
        """Log-odds of a model that gives probabilities alone; warns at the first that are clipped."""
        clipped = np.clip(probability, LOG_ODDS_MARGIN, 1 - LOG_ODDS_MARGIN)
        if not self._told_of_clipping and not np.array_equal(clipped, probability):
            self._told_of_clipping = True
            share = float((clipped != probability).mean())
            warnings.warn(
                f"{share:.1%} of {probability.size:,} probabilities are nearer to 0 or 1 than {LOG_ODDS_MARGIN:g}, so "
                f"their log-odds are cut at {np.log(1 / LOG_ODDS_MARGIN):.1f}: give a function that returns the "
                "model's own margins with output='raw', or explain output='probability'",
                ClippedOutputs,
                stacklevel=2,
            )
        result: Array = np.log(clipped) - np.log1p(-clipped)
        return result

    @abstractmethod
    def outputs(self, batch: Any) -> Any:
        """What `output` asks for, (rows,) or (rows, outputs), from the model itself."""

    def __call__(self, batch: Any, n_rows: int) -> Array:
        """The outputs, checked: (rows, outputs), finite."""
        return checked(self._ask(batch, n_rows), n_rows)

    def held(self) -> AbstractContextManager[Any]:
        """What lasts while `outputs` is called from several threads."""
        return nullcontext()

    def cancel(self) -> None:
        """Ends calls under way, where the model can."""
        return

    def tensors(self, batch: torch.Tensor | Shown, n_rows: int) -> torch.Tensor:
        """The same as a tensor on the model's device, its numbers not looked at."""
        values = torch.as_tensor(self._ask(batch, n_rows)).to(self.device)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2 or len(values) != n_rows or values.shape[1] == 0:
            raise ModelError(
                f"the model returned shape {tuple(values.shape)} for {n_rows} images; expected ({n_rows}, outputs)"
            )
        return values

    def _ask(self, batch: Any, n_rows: int) -> Any:
        try:
            return self.outputs(batch)
        except (InputError, ModelError):
            raise
        except Exception as error:
            raise ModelError(
                f"the model raised {type(error).__name__} on a batch of {n_rows} masked rows: {error}"
            ) from error


def checked(values: Any, n_rows: int) -> Array:
    """What a model returned for so many rows, as finite numbers, (rows, outputs)."""
    if isinstance(values, torch.Tensor):
        values = values.detach().double().cpu().numpy()
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"the model returned {type(values).__name__}, expected numbers ({error})") from error
    if array.ndim == 0 and n_rows == 1:  # a model that squeezes
        array = array.reshape(1)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[0] != n_rows or array.shape[1] == 0:
        raise ModelError(
            f"the model returned shape {np.shape(values)} for {n_rows} rows; "
            f"expected ({n_rows},) or ({n_rows}, outputs)"
        )
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).any(axis=1).sum())
        raise ModelError(
            f"the model returned NaN or infinity for {bad} of {n_rows} masked rows; "
            "a masked row mixes the row with the reference, so check the model on such rows too"
        )
    return array


def probability_from_logits(logits: torch.Tensor) -> torch.Tensor:
    """One column: the sigmoid. Several: the softmax."""
    if logits.ndim == 1 or logits.shape[1] == 1:
        return torch.sigmoid(logits)
    return torch.softmax(logits, dim=1)


def log_odds_from_logits(logits: torch.Tensor) -> torch.Tensor:
    if logits.ndim == 1 or logits.shape[1] == 1:
        return logits
    rest = [torch.logsumexp(torch.cat([logits[:, :k], logits[:, k + 1 :]], 1), 1) for k in range(logits.shape[1])]
    return logits - torch.stack(rest, dim=1)


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """The module in evaluation mode; afterwards each of its parts is as it was, a frozen layer frozen."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


class TorchModel(Model):
    """A ``torch.nn.Module`` on its own device. Its outputs are logits: "probability" applies sigmoid or softmax."""

    tensor = True

    def __init__(self, module: torch.nn.Module, output: Output, precision: Precision = None) -> None:
        super().__init__("raw" if output == "auto" else output)
        self.module = module
        self.precision = None if precision is None else getattr(torch, precision)
        tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
        self.dtype = tensors[0].dtype if tensors else torch.float32
        self.device = tensors[0].device if tensors else torch.device("cpu")
        places = {str(tensor.device) for tensor in tensors}
        if len(places) > 1:
            raise InputError(
                f"the module's weights lie on several devices ({', '.join(sorted(places))}); move it to one"
            )
        # Rows for each pass through the module, as its caches like them, and for each masked batch, so that the
        # work around the passes is done for many of them at once.
        self.pass_rows = 4_096 if self.device.type == "cpu" else 262_144
        self.chunk_rows = 16 * self.pass_rows if self.device.type == "cpu" else self.pass_rows
        self.large = _is_large(module)

    def held(self) -> AbstractContextManager[Any]:
        return evaluating(self.module)  # else the first thread to end would put the others into training mode

    def outputs(self, batch: torch.Tensor | Shown) -> torch.Tensor:
        images, *present = arguments_of(batch)
        with evaluating(self.module), torch.inference_mode():
            logits = self._reduced(images, *present) if self.reduces else self._passes(images.to(self.dtype), *present)
            if self.output == "probability":
                logits = probability_from_logits(logits)
            elif self.output == "log-odds":
                logits = log_odds_from_logits(logits)
            return logits

    @property
    def reduces(self) -> bool:
        """Whether it runs in reduced precision: only where that is fast."""
        return self.precision is not None and self.device.type != "cpu"

    def _reduced(self, batch: torch.Tensor, *present: torch.Tensor) -> torch.Tensor:
        if batch.ndim == 4:  # what reduced-precision convolutions like best
            batch = batch.to(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, self.precision):
            return self._passes(batch, *present).float()

    def _passes(self, batch: torch.Tensor, *present: torch.Tensor) -> torch.Tensor:
        parts = []
        for start in range(0, len(batch), self.pass_rows):
            part, *shown = (tensor[start : start + self.pass_rows] for tensor in (batch, *present))
            logits = self.module(part, *shown)
            if not isinstance(logits, torch.Tensor):
                raise ModelError(f"the module returned {type(logits).__name__}, expected a tensor")
            if logits.ndim == 0 and len(part) == 1:  # a module that squeezes
                logits = logits.reshape(1)
            parts.append(logits)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _is_large(module: torch.nn.Module) -> bool:
    """Whether it has a large weight, convolutions, which use a weight many times, or layers nobody can see."""
    for part in module.modules():
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            continue  # a row takes a few of its numbers
        if isinstance(part, (torch.nn.modules.conv._ConvNd, torch.jit.ScriptModule)):
            return True
        if any(weight.numel() >= LARGE_WEIGHT for weight in part.parameters(recurse=False)):
            return True
    return False


class CallableModel(Model):
    """Any function on the caller's table. Its numbers are what was asked for ("probability" checks 0..1)."""

    def __init__(self, function: Any, output: Output) -> None:
        super().__init__("raw" if output == "auto" else output)
        self.function = function

    def outputs(self, batch: Any) -> Any:
        return _from_probability(self.function(*arguments_of(batch)), self)


class AsyncModel(CallableModel):
    """An ``async def`` function on the caller's table; all its calls run in one event loop."""

    def __init__(self, function: Any, output: Output) -> None:
        super().__init__(function, output)
        self.loop = EventLoop()
        self.timeout: float | None = None
        """Seconds after which a call is cancelled."""

    def held(self) -> AbstractContextManager[Any]:
        return self.loop.running()

    def cancel(self) -> None:
        self.loop.cancel()

    def outputs(self, batch: Any) -> Any:
        return _from_probability(self.loop.result(self.function(*arguments_of(batch)), self.timeout), self)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _from_probability(values: Any, model: Model) -> Any:
    output = model.output
    if output == "raw":
        return values
    probability = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values, dtype=np.float64)
    if probability.size and (probability.min() < -1e-6 or probability.max() > 1 + 1e-6):
        raise InputError(
            f"output={output!r} expects probabilities, but the model returned numbers from {probability.min():.4g} "
            f"to {probability.max():.4g}; use output='raw' to explain them as they are"
        )
    return probability if output == "probability" else model.log_odds(probability)


class EstimatorModel(Model):
    """A scikit-learn estimator or Pipeline, or the scikit-learn face of XGBoost, LightGBM and CatBoost."""

    def __init__(self, estimator: Any, output: Output) -> None:
        probabilities = hasattr(estimator, "predict_proba")
        super().__init__(("probability" if probabilities else "raw") if output == "auto" else output)
        self.estimator = estimator
        self.frames = _frames(estimator)
        if self.output != "raw" and not probabilities:
            raise InputError(
                f"output={output!r} needs predict_proba, which {type(estimator).__name__} does not have; "
                "use output='raw'"
            )
        classes = getattr(estimator, "classes_", None)
        # CatBoost's regressors have classes, too: none.
        if probabilities or (classes is not None and len(classes)):
            self.class_names = tuple(str(label) for label in (() if classes is None else classes))
            if self.output == "raw" and self._margin() is None:
                raise InputError(
                    f"output='raw' needs decision_function, which {type(estimator).__name__} does not have; "
                    "use output='probability' or 'log-odds'"
                )

    def _margin(self) -> Any:
        """The function that gives a classifier's raw score, or None."""
        found = found_estimator(self.estimator)
        kind = library_of(_last_step(found))
        if kind == "xgboost":
            return lambda batch: found.predict(batch, output_margin=True)  # a Pipeline passes it to its last step
        if kind == "lightgbm":
            return lambda batch: found.predict(batch, raw_score=True)
        if kind == "catboost":
            return lambda batch: found.predict(batch, prediction_type="RawFormulaVal")
        return getattr(self.estimator, "decision_function", None)

    @cached_property
    def link(self) -> Link | None:
        """How a classifier's margins become its probabilities, where that is known."""
        return _link_of(_last_step(found_estimator(self.estimator)))

    def outputs(self, batch: Any) -> Any:
        if self.class_names is None:
            return self.estimator.predict(batch)
        if self.output == "raw":
            return self._margin()(batch)
        if self.output == "log-odds" and self.link is not None:
            return _log_odds_from_margins(self._margin()(batch), self.link)
        probability = self.estimator.predict_proba(batch)
        if isinstance(probability, list):
            raise InputError(
                "models with several classification targets are not supported; wrap one of them in a function"
            )
        return probability if self.output == "probability" else self.log_odds(np.asarray(probability, dtype=np.float64))


class BoosterModel(Model):
    """A native XGBoost or LightGBM booster."""

    def __init__(self, booster: Any, output: Output) -> None:
        self.library = library_of(booster)
        self.frames = _frames(booster)
        objective = _objective(booster, self.library)
        probabilistic = objective in PROBABILISTIC
        super().__init__(("probability" if probabilistic else "raw") if output == "auto" else output)
        if self.output != "raw" and not probabilistic:
            raise InputError(
                f"output={output!r} needs a classifier, but the objective is {objective!r}; use output='raw'"
            )
        # These predict a class or a score where the others predict probabilities.
        self.from_margin = objective in ("multi:softmax", "binary:logitraw")
        self.booster = booster

    @cached_property
    def link(self) -> Link | None:
        """How margins become log-odds, where these are asked for."""
        return _booster_link(self.booster, self.library) if self.output == "log-odds" else None

    def outputs(self, batch: Any) -> Any:
        raw = self.output == "raw" or self.from_margin or self.link is not None
        if self.library == "xgboost":
            import xgboost

            values = self.booster.predict(xgboost.DMatrix(batch, enable_categorical=True), output_margin=raw)
        else:
            values = self.booster.predict(batch, raw_score=raw)
        if self.output == "raw":
            return values
        if self.link is not None:
            return _log_odds_from_margins(values, self.link)
        values = np.asarray(values, dtype=np.float64)
        if self.from_margin:
            values = probability_from_logits(torch.from_numpy(values)).numpy()
        return values


PROBABILISTIC = (
    *("binary:logistic", "binary:logitraw", "reg:logistic", "multi:softprob", "multi:softmax"),  # XGBoost
    *("binary", "multiclass", "multiclassova", "cross_entropy"),  # LightGBM
)


def _objective(booster: Any, library: str) -> str:
    return _objective_words(booster, library).partition(" ")[0]


def _objective_words(booster: Any, library: str) -> str:
    """The objective and, in LightGBM, its settings: "binary sigmoid:1"."""
    if library == "xgboost":
        import json

        return str(json.loads(booster.save_config())["learner"]["objective"]["name"])
    return str(booster.dump_model(num_iteration=1).get("objective", ""))


def objective_words(estimator: Any) -> str:
    """What a boosted estimator was trained for, in its library's words; with LightGBM's settings after it."""
    library = library_of(estimator)
    if library in ("xgboost", "lightgbm"):
        return _objective_words(estimator.get_booster() if library == "xgboost" else estimator.booster_, library)
    if library == "catboost":
        try:
            settings = estimator.get_all_params()
        except Exception:  # a sum of models keeps none
            return ""
        return str(settings.get("loss_function", "")).partition(":")[0]
    return str(getattr(estimator, "loss", ""))


@dataclass(frozen=True)
class Link:
    """How a library's margins become probabilities."""

    kind: Literal["sigmoid", "softmax"]
    factor: float = 1.0
    """What margins are multiplied with before a sigmoid."""


CATBOOST_LINKS = {
    **dict.fromkeys(("Logloss", "CrossEntropy", "Focal", "MultiClassOneVsAll"), Link("sigmoid")),
    "MultiClass": Link("softmax"),
}


def _log_odds_from_margins(margins: Any, link: Link) -> Any:
    """Exact log-odds, (rows,) or (rows, outputs)."""
    margins = np.asarray(margins, dtype=np.float64)
    if link.kind == "sigmoid":
        return link.factor * margins
    return log_odds_from_logits(torch.from_numpy(margins)).numpy()


def _booster_link(booster: Any, library: str) -> Link | None:
    """The link of a native booster, or None where it is not known to be one of these."""
    objective, *settings = _objective_words(booster, library).split() or [""]
    if objective in ("multi:softprob", "multi:softmax", "multiclass"):
        return Link("softmax")
    if objective not in PROBABILISTIC:
        return None
    factors = [word.removeprefix("sigmoid:") for word in settings if word.startswith("sigmoid:")]
    return Link("sigmoid", float(factors[0]) if factors else 1.0)


def _link_of(estimator: Any) -> Link | None:
    """The link between a classifier's margins and its probabilities, where its class is known to have one."""
    library, name = library_of(estimator), type(estimator).__name__
    if library == "xgboost":
        return _booster_link(estimator.get_booster(), library)
    if library == "lightgbm":
        return _booster_link(estimator.booster_, library)
    if library == "catboost":
        return CATBOOST_LINKS.get(objective_words(estimator))
    binary = len(getattr(estimator, "classes_", ())) == 2
    log_loss = getattr(estimator, "loss", None) == "log_loss"
    known = {
        "HistGradientBoostingClassifier": log_loss,
        "GradientBoostingClassifier": log_loss,
        "SGDClassifier": log_loss and binary,
        "LogisticRegression": _plain_logistic(estimator, binary=binary),
        "LogisticRegressionCV": _plain_logistic(estimator, binary=binary),
        "LinearDiscriminantAnalysis": True,
    }
    if library != "sklearn" or not known.get(name, False):
        return None
    return Link("sigmoid" if binary else "softmax")


def _plain_logistic(estimator: Any, *, binary: bool) -> bool:
    """Of two classes one margin, of several their softmax; "one versus rest" normalises sigmoids instead."""
    how = getattr(estimator, "multi_class", "auto")
    if binary:
        return how != "multinomial"
    return how != "ovr" and getattr(estimator, "solver", "") != "liblinear"


def found_estimator(estimator: Any) -> Any:
    """What a search over settings (GridSearchCV) has found; else the estimator itself."""
    return getattr(estimator, "best_estimator_", estimator)


def _last_step(estimator: Any) -> Any:
    """What a Pipeline ends with; else the estimator itself."""
    return estimator.steps[-1][1] if library_of(estimator) == "sklearn" and hasattr(estimator, "steps") else estimator


ONNX_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
}


class OnnxModel(Model):
    """An ONNX file in onnxruntime: one matrix input, or one input for each column; probabilities if it names them.

    Weights in files of their own (external data) must be in the model's folder; see `cortx.onnx_files`.
    """

    def __init__(self, model: Any, output: Output) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise need("onnxruntime", "an ONNX model", "onnx") from error
        if isinstance(model, (str, Path)):
            if not Path(model).is_file():
                raise InputError(f"there is no ONNX file {str(model)!r}")
            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = torch_threads()
            settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it takes cores from others
            try:
                graph = Path(model).read_bytes()
                opened = str(model) if check_own_folder(Path(model), graph) else graph
                model = onnxruntime.InferenceSession(opened, settings, providers=["CPUExecutionProvider"])
            except InputError:
                raise
            except Exception as error:
                raise InputError(f"{str(model)!r} is not a readable ONNX model: {error}") from error
        self.session = model
        self.inputs = model.get_inputs()
        self.tensor = len(self.inputs) == 1 and self.inputs[0].type in ONNX_TYPES
        if self.tensor:
            self.dtype = ONNX_TYPES[self.inputs[0].type]
        outputs = [item for item in model.get_outputs() if item.type in ONNX_TYPES and "int" not in item.type]
        if not outputs:
            raise InputError(
                f"the ONNX model has no tensor of numbers among its outputs "
                f"({', '.join(f'{o.name}: {o.type}' for o in model.get_outputs())}); export it without ZipMap"
            )
        named = [item for item in outputs if "prob" in item.name.lower()]
        self.probabilities = bool(named)
        self.output_name = (named or outputs)[0].name
        super().__init__(("probability" if named else "raw") if output == "auto" else output)

    def outputs(self, batch: Any) -> Any:
        feed = {self.inputs[0].name: batch.to(self.dtype).numpy()} if self.tensor else _onnx_columns(self.inputs, batch)
        values = self.session.run([self.output_name], feed)[0]
        if self.probabilities:
            return _from_probability(values, self)
        if self.output == "raw":
            return values
        logits = torch.from_numpy(np.asarray(values, dtype=np.float64))
        return probability_from_logits(logits) if self.output == "probability" else log_odds_from_logits(logits)


def _onnx_columns(inputs: Any, batch: Any) -> dict[str, npt.NDArray[Any]]:
    """One ONNX input a column, in the type it declares."""
    import narwhals as nw

    if isinstance(batch, np.ndarray):
        raise InputError("the ONNX model takes one input for each column; give a frame with these names")
    frame = nw.from_native(batch, eager_only=True)
    missing = [item.name for item in inputs if item.name not in frame.columns]
    if missing:
        raise InputError(f"the ONNX model asks for the columns {missing}, which the table does not have")
    feed: dict[str, npt.NDArray[Any]] = {}
    for item in inputs:
        column = frame[item.name].to_numpy()
        kind: Any = str(ONNX_TYPES[item.type]).removeprefix("torch.") if item.type in ONNX_TYPES else object
        feed[item.name] = column.astype(kind).reshape((-1, 1) if len(item.shape) == 2 else (-1,))
    return feed


def library_of(model: Any) -> str:
    """The library a model's class, or the class it extends, comes from."""
    homes = [base.__module__.partition(".")[0] for base in type(model).__mro__]
    return next((home for home in homes if home in ("xgboost", "lightgbm", "catboost")), homes[0])


def _frames(model: Any) -> tuple[str, ...]:
    """LightGBM refuses Arrow and polars categories, XGBoost Arrow ones; these and CatBoost know pandas."""
    known: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(("lightgbm", "catboost"), ("pandas", "numpy")),
        "xgboost": ("pandas", "numpy", "polars"),
    }
    return known.get(library_of(model), FRAMES)


def adapt(model: Any, output: Output, precision: Precision = None) -> Model:
    """The adapter for a model: torch module, ONNX file, booster, scikit-learn estimator, or any callable."""
    if precision not in (None, "float16", "bfloat16"):
        raise InputError(f"precision must be 'float16', 'bfloat16' or None, got {precision!r}")
    if precision is not None and not isinstance(model, (torch.nn.Module, Model)):
        raise InputError(f"precision={precision!r} is for torch modules, got a {type(model).__qualname__}")
    if output not in OUTPUTS:
        raise InputError(f"output must be one of {', '.join(map(repr, OUTPUTS))}, got {output!r}")
    if isinstance(model, Model):
        return model
    if isinstance(model, type):
        raise InputError(f"the model is the class {model.__qualname__}; give a fitted instance of it")
    if isinstance(model, torch.nn.Module):
        return TorchModel(model, output, precision)
    if isinstance(model, (str, Path)) or type(model).__name__ == "InferenceSession":
        return OnnxModel(model, output)
    if type(model).__name__ == "Booster" and library_of(model) in ("xgboost", "lightgbm"):
        return BoosterModel(model, output)
    if hasattr(model, "predict"):
        return EstimatorModel(model, output)
    if callable(model):
        return (AsyncModel if _is_async(model) else CallableModel)(model, output)
    raise InputError(
        f"cannot explain a {type(model).__module__}.{type(model).__qualname__}; expected a torch module, "
        "a scikit-learn estimator, an XGBoost, LightGBM or CatBoost model, the path of an ONNX file, "
        "or a function from a table to numbers"
    )


def check_removes(model: Model) -> None:
    """Refuses a model that cannot be called as model(images, present)."""
    called = "reference='removed' calls the model as model(images, present), `present` true for the parts that count"
    instead = "reference='zero', 'mean', 'blur' or an image is for models that take images alone"
    if not isinstance(model, (TorchModel, CallableModel)):
        raise InputError(
            f"{called}; got a {type(model).__name__.removesuffix('Model')} model, which takes one argument. Give a "
            f"torch module or a function of these two; {instead}"
        )
    function = model.module if isinstance(model, TorchModel) else model.function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        signature = inspect.signature(model.module.forward if isinstance(model, TorchModel) else function)
    except (TypeError, ValueError):  # functions written in C may have none
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise InputError(
            f"{called}; {name}{signature} cannot be called so ({error}). Let it take `present`, (images, players) bool "
            f"in the order of the players, and leave absent parts out, by masking the attention to their tokens say; "
            f"{instead}"
        ) from error
