"""The image study as results: flat records, and Markdown tables with the paper's printed numbers beside ours."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, need
from cortx.explanation import Explanation
from cortx.paper.cifar10 import CLASSES
from cortx.paper.image_study import JUDGES, KERNEL, LEARNED, METHODS, OF_CLASSES, STAGES, ImageStudy
from cortx.paper.records import record
from cortx.paper.tables import MISSING, count_text, markdown, seconds_text, with_spread

Facts = Mapping[str, Mapping[str, Any]]
"""What the stages of a study left: stage -> its JSON."""
Record = Mapping[str, Any]

DIRECTIONS = ("exclusion", "inclusion")
SCORES = {"top1": "top-1", "log_odds": "log-odds", "delta_log_odds": "Δ log-odds"}
ERRORS = {"cosine": "cosine", "relative_l2": "relative l2 error", "rank_correlation": "rank correlation"}
NETWORKS = {"surrogate": "surrogate", "retrained surrogate": "retrained surrogate"}
QUALITY = {
    "agreement": "agrees with the classifier, whole images",
    "masked_agreement": "half of the patches removed",
    "model_masked_agreement": "the classifier itself, half removed",
}
JUDGED = {
    "target, ROAD": "the classifier, what is removed is imputed (ROAD)",
    "target, zero": "the classifier, what is removed is zero",
    "retrained surrogate": "a retrained surrogate",
    "surrogate": "the surrogate",
}
COSTS = ("images_per_second", "evaluations_per_image")
TRAINING = ("training_evaluations", "training_seconds", "label_evaluations")
ON_DEVICE = {
    "images_per_second_on_device": "CoRTX (default), all on the device",
    "images_per_second_on_device_with_model": "the same, with the model's own outputs",
    "model_images_per_second": "the model alone",
}
TIMES = {"times_kernel_on_device": "images_per_second_on_device", "times_kernel": "images_per_second"}
"""How many times more images a second ours explains than KernelSHAP, by the speed that is compared."""

# As the paper prints them: table:exin (top-1 and log-odds), tab:deltalogodds, tab:exp_sorrogate; exclusion, inclusion.
PRINTED: dict[str, dict[str, tuple[str, ...]]] = {
    "top1": {
        "cortx-paper": ("0.373 ± 0.011", "0.774 ± 0.012"), "fastshap": ("0.420 ± 0.015", "0.782 ± 0.015"),
        "kernel": ("0.395 ± 0.012", "0.769 ± 0.012"), "saliency": ("0.499 ± 0.012", "0.735 ± 0.013"),
        "integrated-gradients": ("0.559 ± 0.012", "0.740 ± 0.012"), "smoothgrad": ("0.471 ± 0.011", "0.738 ± 0.012"),
        "gradcam": ("0.563 ± 0.012", "0.741 ± 0.012"), "deepshap": ("0.554 ± 0.012", "0.742 ± 0.012"),
    },
    "log_odds": {
        "cortx-paper": ("5.172 ± 0.010", "4.863 ± 0.028"), "fastshap": ("5.010 ± 0.012", "4.817 ± 0.026"),
        "kernel": ("5.517 ± 0.009", "4.829 ± 0.024"), "saliency": ("5.869 ± 0.010", "4.415 ± 0.025"),
        "integrated-gradients": ("6.159 ± 0.011", "4.439 ± 0.025"), "smoothgrad": ("5.679 ± 0.008", "4.370 ± 0.026"),
        "gradcam": ("6.109 ± 0.011", "4.446 ± 0.024"), "deepshap": ("6.124 ± 0.009", "4.441 ± 0.023"),
    },
    "delta_log_odds": {
        "cortx-paper": ("2.790 ± 0.060", "1.615 ± 0.026"), "fastshap": ("2.896 ± 0.045", "1.642 ± 0.033"),
        "kernel": ("2.449 ± 0.055", "1.687 ± 0.031"), "saliency": ("2.075 ± 0.052", "2.055 ± 0.036"),
        "integrated-gradients": ("1.818 ± 0.053", "2.040 ± 0.039"), "smoothgrad": ("2.287 ± 0.054", "2.111 ± 0.036"),
        "gradcam": ("1.824 ± 0.049", "2.062 ± 0.037"), "deepshap": ("1.870 ± 0.054", "2.040 ± 0.035"),
    },
    "top1, retrained surrogate": {
        "cortx-paper": ("0.372 ± 0.012", "0.772 ± 0.012"), "fastshap": ("0.386 ± 0.012", "0.767 ± 0.013"),
        "kernel": ("0.406 ± 0.011", "0.767 ± 0.012"), "saliency": ("0.543 ± 0.012", "0.703 ± 0.012"),
        "integrated-gradients": ("0.581 ± 0.012", "0.704 ± 0.012"), "smoothgrad": ("0.480 ± 0.012", "0.695 ± 0.012"),
        "gradcam": ("0.573 ± 0.012", "0.719 ± 0.013"), "deepshap": ("0.573 ± 0.012", "0.706 ± 0.012"),
    },
}  # fmt: skip


# Records -----------------------------------------------------------------------------------------------------------


def records(facts: Facts) -> list[dict[str, Any]]:
    """Every number of a study as a flat record; stages that have not run leave their cells out."""
    found = [made for make in (_networks, _curves, _costs, _errors, _seeds, _throughput) for made in make(facts)]
    # A network that was trained badly may give no number at all, and JSON knows no NaN.
    return [made if math.isfinite(made["value"]) else made | {"value": None} for made in found]


def _made(facts: Facts, stage: str, experiment: str, setting: str, method: str, metric: str, value: float,
          spread: float | None = None, **more: Any) -> dict[str, Any]:  # fmt: skip
    """A record with the hardware and the versions of the stage that found it."""
    about = {key: facts[stage][key] for key in ("hardware", "versions")}
    made = record(experiment, setting, method, metric, float(value), data=_data(facts), **about, **more)
    return made | {"spread": None if spread is None else float(spread)}


def _data(facts: Facts) -> str:
    return str(facts["target"]["data"]) if "target" in facts else "images"


def _networks(facts: Facts) -> Iterator[dict[str, Any]]:
    if "target" in facts:
        target = facts["target"]
        yield _made(
            facts, "target", "networks", "test images", "target", "accuracy", target["accuracy"],
            seconds=target["stage_seconds"], images=target["images"],
        )  # fmt: skip
    for name in NETWORKS:
        if name not in facts:
            continue
        stage = facts[name]
        cost = {"evaluations": stage["evaluations"], "seconds": stage["seconds"], "images": stage["test"]["images"]}
        for metric in QUALITY:
            yield _made(facts, name, "networks", "test images", name, metric, stage["test"][metric], **cost)
        yield _made(facts, name, "networks", "test images", name, "masked_accuracy", stage["masked_accuracy"], **cost)


def _curves(facts: Facts) -> Iterator[dict[str, Any]]:
    """The area of each curve with its bootstrap spread, and the curve itself; `fractions` stand once for each judge."""
    stage = facts.get("curves", {})
    for judge in (judge for judge in JUDGES if judge in stage):
        fractions = next(iter(stage[judge].values()))["fractions"]
        yield _made(
            facts, "curves", "curves", judge, "all", "points", len(fractions),
            fractions=[round(float(at), 6) for at in fractions],
        )  # fmt: skip
        for method, found in stage[judge].items():
            for direction in DIRECTIONS:
                for score in SCORES:
                    cell = found[direction][score]
                    yield _made(
                        facts, "curves", "curves", judge, method, f"{direction} {score}", cell["auc"], cell["auc_std"],
                        **_spent(facts, method, found["images"]), images=found["images"],
                        curve=[round(float(height), 5) for height in cell["curve"]],
                    )  # fmt: skip


def _seeds(facts: Facts) -> Iterator[dict[str, Any]]:
    """Our explainer over seeds, before every judge and against converged labels: mean and deviation."""
    others = {seed: one for seed, one in facts.get("seeds", {}).get("seeds", {}).items() if "judges" in one}
    if not others or "curves" not in facts or "errors" not in facts:
        return
    cells = {
        (judge, f"{way} top1"): [
            facts["curves"][judge]["cortx"][way]["top1"]["auc"], *(one["judges"][judge][way] for one in others.values())
        ]
        for judge in facts["curves"] if judge in JUDGES for way in DIRECTIONS
    }  # fmt: skip
    for name in ("cosine", "relative_l2", "rank_correlation"):
        cells["surrogate", name] = [facts["errors"]["cortx"][name], *(one[name] for one in others.values())]
    about = {key: facts["seeds"][key] for key in ("hardware", "versions")}
    for (judge, metric), values in cells.items():
        seeds = [0, *map(int, others)]
        yield record("seeds", judge, "cortx", f"{metric} over seeds", values, seeds=seeds, data=_data(facts)) | about


def _errors(facts: Facts) -> Iterator[dict[str, Any]]:
    """Distances to converged labels, with standard errors over images; and the labels' own standard error."""
    truth = facts.get("truth")
    if truth is not None:
        yield _made(
            facts, "truth", "errors", "converged labels", "truth", "mean_relative_standard_error",
            truth["mean_relative_standard_error"], evaluations=truth["evaluations"], seconds=truth["stage_seconds"],
            images=truth["images"], budget=truth["budget"],
        )  # fmt: skip
    if "cortx-paper" in facts:
        label = facts["cortx-paper"]
        yield _made(
            facts, "cortx-paper", "errors", "its own labels", "cortx-paper", "label_relative_standard_error",
            label["label_relative_standard_error"], evaluations=label["costs"]["labels"]["evaluations"],
            seconds=label["costs"]["labels"]["seconds"], images=label["costs"]["labels"]["rows"],
        )  # fmt: skip
    for method in (method for method in OF_CLASSES if method in facts.get("errors", {})):
        images = None if truth is None else truth["images"]
        for metric in ERRORS:
            found = facts["errors"][method]
            yield _made(
                facts, "errors", "errors", "converged labels", method, metric, found[metric], found[f"{metric}_se"],
                **_spent(facts, method, images or 0), images=images,
            )  # fmt: skip


def _costs(facts: Facts) -> Iterator[dict[str, Any]]:
    for method in METHODS:
        for name, value in {**_speed(facts, method), **_training(facts, method)}.items():
            stage = method if method in facts and name not in facts.get("explanations", {}).get(method, {}) else None
            yield _made(facts, stage or "explanations", "costs", "test images", method, name, value)


def _throughput(facts: Facts) -> Iterator[dict[str, Any]]:
    explained = facts.get("explanations", {})
    if not {"cortx", "kernel"} <= explained.keys():
        return
    slow = explained["kernel"]["images_per_second"]
    for metric, speed in TIMES.items():
        if speed in explained["cortx"]:
            ratio = explained["cortx"][speed] / slow
            yield _made(facts, "explanations", "throughput", "test images", "cortx", metric, ratio)


def _speed(facts: Facts, method: str) -> dict[str, float]:
    """Images a second, and model evaluations for each image."""
    found = dict(facts.get("explanations", {}).get(method, {}))
    if method in LEARNED and "images_per_second" in facts.get(method, {}):
        # One evaluation is the image's own output, to which an explanation adds up.
        found = {"evaluations_per_image": 1.0} | {key: facts[method][key] for key in COSTS if key in facts[method]}
    return found


def _training(facts: Facts, method: str) -> dict[str, float]:
    """What a learned method spent before the first explanation; its labels, those that only check it included."""
    if method not in LEARNED or method not in facts:
        return {}
    costs = facts[method]["costs"]
    parts = {name: part for name, part in costs.items() if isinstance(part, Mapping)}
    if not parts:  # FastSHAP learns from games, not from labels
        return {"training_evaluations": costs["evaluations"], "training_seconds": costs["seconds"]}
    return {
        "training_evaluations": costs["total_evaluations"],
        "training_seconds": sum(part["seconds"] for part in parts.values()),
        "label_evaluations": sum(part["evaluations"] for name, part in parts.items() if name.startswith("labels")),
    }


def _spent(facts: Facts, method: str, images: int) -> dict[str, float | None]:
    """Evaluations and seconds of a method in all: its training, and the explanation of so many images."""
    if method == "random":
        return {"evaluations": 0, "seconds": 0.0}
    speed, training = _speed(facts, method), _training(facts, method)
    if not speed or (method in LEARNED and not training):
        return {"evaluations": None, "seconds": None}
    return {
        "evaluations": training.get("training_evaluations", 0) + images * speed["evaluations_per_image"],
        "seconds": training.get("training_seconds", 0) + images / speed["images_per_second"],
    }


def missing_cells(found: Sequence[Record]) -> list[str]:
    """What a whole study has and these records lack."""
    return [" / ".join(cell) for cell in _cells() if _value(found, *cell) is None]


def _cells() -> Iterator[tuple[str, str, str, str]]:
    yield "networks", "test images", "target", "accuracy"
    for name in NETWORKS:
        for metric in (*QUALITY, "masked_accuracy"):
            yield "networks", "test images", name, metric
    for judge in JUDGES:
        for method in METHODS:
            for direction in DIRECTIONS:
                yield from (("curves", judge, method, f"{direction} {score}") for score in SCORES)
    for method in METHODS:
        yield from (("costs", "test images", method, metric) for metric in COSTS if method != "random")
        yield from (("costs", "test images", method, metric) for metric in TRAINING[:2] if method in LEARNED)
    yield from (("costs", "test images", "cortx", metric) for metric in ON_DEVICE)
    yield from (("throughput", "test images", "cortx", metric) for metric in TIMES)
    yield "errors", "converged labels", "truth", "mean_relative_standard_error"
    for method in OF_CLASSES:
        yield from (("errors", "converged labels", method, metric) for metric in ERRORS)


# Tables ------------------------------------------------------------------------------------------------------------


def more_is_better(direction: str, score: str) -> bool:
    """Exclusion should destroy and inclusion restore; delta log-odds measures what is lost."""
    return (direction == "inclusion") != (score == "delta_log_odds")


def curves_table(found: Sequence[Record], judge: str, scores: Sequence[str] = ("top1", "log_odds")) -> str:
    """Areas under the curves of one judge: a row for each method, the paper's number beside ours, the best in bold."""
    columns = [(judge, direction, score) for score in scores for direction in DIRECTIONS]
    return _areas(found, columns, [f"{SCORES[score]}, {direction}" for _, direction, score in columns])


def delta_table(found: Sequence[Record]) -> str:
    """Delta log-odds of the classifier (tab:deltalogodds), by both ways to remove patches."""
    judges = {"target, ROAD": "ROAD", "target, zero": "zero"}
    columns = [(judge, direction, "delta_log_odds") for direction in DIRECTIONS for judge in judges]
    return _areas(found, columns, [f"{direction}, {judges[judge]}" for judge, direction, _ in columns])


def _areas(found: Sequence[Record], columns: Sequence[tuple[str, str, str]], heads: Sequence[str]) -> str:
    printed = [_printed(found, *column) for column in columns]
    # One printed number serves both ways to remove patches, once.
    shown = [bool(texts) and texts not in printed[:i] for i, texts in enumerate(printed)]
    best = [_best(found, *column) for column in columns]
    lines = []
    for method, name in METHODS.items():
        line = [name]
        for i, (judge, direction, score) in enumerate(columns):
            line += [printed[i].get(method, "")] if shown[i] else []
            line.append(_cell(found, "curves", judge, method, f"{direction} {score}", best[i]))
        lines.append(line)
    head = ["method"]
    for i, title in enumerate(heads):
        head += [f"{title.partition(', ROAD')[0]}, paper"] if shown[i] else []
        head.append(title)
    return markdown(head, lines)


_ABOUT_PRINTED = (
    " The paper's numbers are those of its own classifier and masking; its log-odds are larger for exclusion than for "
    "inclusion, for every method, so that they cannot be areas as defined here."
)


def _printed(found: Sequence[Record], judge: str, direction: str, score: str) -> dict[str, str]:
    """The paper's numbers of one column, by method; none for other data than the paper's."""
    if judge == "surrogate" or not _title(found).startswith("CIFAR-10"):
        return {}
    of_judge = PRINTED.get(score if judge.startswith("target") else f"{score}, {judge}", {})
    return {method: both[DIRECTIONS.index(direction)] for method, both in of_judge.items()}


def networks_table(found: Sequence[Record]) -> str:
    """How well the surrogates stand in for the classifier."""
    lines = []
    for name, title in NETWORKS.items():
        metrics = (*QUALITY, "masked_accuracy")
        lines.append([title, *(_cell(found, "networks", "test images", name, metric) for metric in metrics)])
    return markdown(["network", *QUALITY.values(), "accuracy, half removed"], lines)


def errors_table(found: Sequence[Record]) -> str:
    """Distances to converged labels, with standard errors over images."""
    better = {"cosine": max, "relative_l2": min, "rank_correlation": max}
    lines = []
    for method in OF_CLASSES:
        line = [METHODS[method] + (f", {KERNEL:,} evaluations" if method == "kernel" else "")]
        for metric, choose in better.items():
            values = [_value(found, "errors", "converged labels", other, metric) for other in OF_CLASSES]
            best = choose([value for value in values if value is not None], default=math.nan)
            line.append(_cell(found, "errors", "converged labels", method, metric, best))
        lines.append(line)
    return markdown(["method", *ERRORS.values()], lines)


def costs_table(found: Sequence[Record]) -> str:
    """Speed, and what an explanation and the training before it cost."""
    written = {
        "images_per_second": lambda value: count_text(value) if value >= 10 else f"{value:.2g}",
        "evaluations_per_image": lambda value: f"{value:,.0f}",
        "training_evaluations": count_text, "label_evaluations": count_text, "training_seconds": seconds_text,
    }  # fmt: skip
    lines = []
    for method, name in METHODS.items():
        if method == "random":
            continue
        line = [name]
        for metric, write in written.items():
            value = _value(found, "costs", "test images", method, metric)
            due = metric in COSTS or (method in LEARNED and metric != "label_evaluations")
            line.append(write(value) if value is not None else MISSING if due else "")
        lines.append(line)
    for metric, name in ON_DEVICE.items():
        speed = _value(found, "costs", "test images", "cortx", metric)
        lines.append([name, MISSING if speed is None else count_text(speed), "", "", "", ""])
    head = ["method", "images per second", "evaluations per image", "evaluations to train", "of these, for labels"]
    return markdown([*head, "seconds to train"], lines)


def render(found: Sequence[Record]) -> str:
    """The whole Markdown section: what the numbers say, every table, and where they come from."""
    images = next((r["images"] for r in found if r["experiment"] == "curves" and r["metric"] != "points"), 0)
    parts = [
        *_says(found),
        f"### Exclusion and inclusion, {JUDGED['target, ROAD']} (table:exin)",
        f"Areas under the curves of {images:,} test images ± bootstrap; for top-1 and log-odds less is better for "
        "exclusion, more for inclusion."
        + (_ABOUT_PRINTED if _printed(found, "target, ROAD", "exclusion", "top1") else ""),
        curves_table(found, "target, ROAD"),
        f"### Exclusion and inclusion, {JUDGED['target, zero']} (table:exin)",
        curves_table(found, "target, zero"),
        "### Delta log-odds (tab:deltalogodds)",
        "The classifier, by both ways to remove patches; here more is better for exclusion, less for inclusion.",
        delta_table(found),
        f"### Exclusion and inclusion, {JUDGED['retrained surrogate']} (tab:exp_sorrogate)",
        curves_table(found, "retrained surrogate", tuple(SCORES)),
        "### Exclusion and inclusion, the surrogate that is explained",
        curves_table(found, "surrogate", tuple(SCORES)),
        "### Distance to converged labels",
        errors_table(found),
        "### Speed and cost",
        costs_table(found),
        "### The networks",
        networks_table(found),
        _footer(found),
    ]
    absent = missing_cells(found)
    if absent:
        parts.append(f"**{len(absent)} of {len(list(_cells()))} cells are missing.**")
    return "\n\n".join(part for part in parts if part) + "\n"


def main_table(found: Sequence[Record]) -> str:
    """What a terminal shows at the end."""
    return curves_table(found, "surrogate", ("top1",))


# What the numbers say -----------------------------------------------------------------------------------------------


def _says(found: Sequence[Record]) -> list[str]:
    """Sentences that state what the records hold, and nothing else."""
    rivals = [_of_fastshap(found, name) for name in ("fastshap", "fastshap-equal")]
    others = [_of_seeds(found), _of_paper(found), _of_errors(found)]
    said = [_of_networks(found), _of_judges(found), *rivals, *others]
    lines = [f"- {sentence}" for sentence in (*said, _of_speed(found)) if sentence]
    return ["\n".join(lines)] if lines else []


def _of_networks(found: Sequence[Record]) -> str:
    accuracy = _value(found, "networks", "test images", "target", "accuracy")
    metrics = ("agreement", "masked_agreement", "model_masked_agreement", "masked_accuracy")
    known = [_value(found, "networks", "test images", "surrogate", metric) for metric in metrics]
    whole, masked, own, half = (math.nan if value is None else value for value in known)
    if accuracy is None or None in known:
        return ""
    images = next(r["images"] for r in found if r["method"] == "target")
    return (
        f"**The model.** {_title(found)}: the classifier finds {accuracy:.1%} of {images:,.0f} test images. The "
        f"surrogate agrees with it on {whole:.1%} of them; with half of the patches removed it still names what the "
        f"classifier says of the whole image in {masked:.1%} (the classifier itself: {own:.1%}), and the true class in "
        f"{half:.1%}."
    )


def _of_judges(found: Sequence[Record]) -> str:
    """The place of ours among all methods."""
    places = []
    for judge, title in JUDGED.items():
        each = [_place(found, judge, direction, "top1") for direction in DIRECTIONS]
        if None in each:
            return ""
        places.append(f"{title}: {each[0]} and {each[1]}")
    return (
        f"**Order of importance.** The place of CoRTX (default) among {len(METHODS) - 1} methods by top-1 exclusion "
        f"and inclusion, judged by {'; '.join(places)}."
    )


def _of_seeds(found: Sequence[Record]) -> str:
    of_seeds = [one for one in found if (one["experiment"], one["setting"]) == ("seeds", "surrogate")]
    if not of_seeds:
        return ""
    texts = [
        f"{one['metric'].removesuffix(' over seeds')} {one['value']:.3f} ± {one['spread']:.3f}" for one in of_seeds
    ]
    return f"**Over {len(of_seeds[0]['seeds'])} seeds** of our training, on the surrogate: {', '.join(texts)}."


def _of_fastshap(found: Sequence[Record], rival: str) -> str:
    pairs = [("curves", "surrogate", f"{direction} top1") for direction in DIRECTIONS]
    pairs += [("errors", "converged labels", metric) for metric in ERRORS]
    texts = []
    for experiment, setting, metric in pairs:
        ours, other = (_value(found, experiment, setting, method, metric) for method in ("cortx", rival))
        if ours is None or other is None:
            return ""
        wins = ours < other if metric in ("exclusion top1", "relative_l2") else ours > other
        name = metric.partition(" ")[0] if experiment == "curves" else ERRORS[metric]
        texts.append(f"{name} {ours:.3f} against {other:.3f} ({'ahead' if wins else 'behind'})")
    budgets = [_value(found, "costs", "test images", method, "training_evaluations") for method in ("cortx", rival)]
    spent = " and ".join(count_text(math.nan if value is None else value) for value in budgets)
    return f"**Against {METHODS[rival]}**, trained with {spent} evaluations, on the surrogate: {', '.join(texts)}."


def _of_paper(found: Sequence[Record]) -> str:
    """The paper's recipe as it comes out."""
    texts = []
    for direction in DIRECTIONS:
        names = ("cortx-paper", "cortx", "random")
        values = [_value(found, "curves", "surrogate", method, f"{direction} top1") for method in names]
        if None in values:
            return ""
        written, default, random = (f"{value:.3f}" for value in values)
        texts.append(f"{direction} {written} (default {default}, random order {random})")
    noise = _value(found, "errors", "its own labels", "cortx-paper", "label_relative_standard_error")
    about = "" if noise is None else f" Its labels have a relative standard error of {noise:.0%}."
    return f"**The paper's recipe**, on the surrogate: {', '.join(texts)}.{about}"


def _of_errors(found: Sequence[Record]) -> str:
    truth = next((r for r in found if r["method"] == "truth"), None)
    values = [_value(found, "errors", "converged labels", method, "relative_l2") for method in ("cortx", "kernel")]
    ours, kernel = (math.nan if value is None else value for value in values)
    if truth is None or None in values:
        return ""
    return (
        f"**Converged labels** of {truth['images']:,} images, {truth['budget']:,} evaluations each, have a relative "
        f"standard error of {truth['value']:.1%}. The relative l2 error of KernelSHAP with {KERNEL:,} evaluations is "
        f"{kernel:.2f}, that of CoRTX (default), which spends one, is {ours:.2f}."
    )


def _of_speed(found: Sequence[Record]) -> str:
    values = [_value(found, "throughput", "test images", "cortx", metric) for metric in TIMES]
    on_device, whole = (math.nan if value is None else value for value in values)
    if None in values:
        return ""
    return (
        f"**Speed.** In batches on the device, the model's outputs known, CoRTX (default) explains {on_device:,.0f} "
        f"times as many images a second as KernelSHAP with {KERNEL:,} evaluations on the same device; through "
        f"`explain()`, from array to array, {whole:,.0f} times."
    )


def _place(found: Sequence[Record], judge: str, direction: str, score: str) -> int | None:
    """1 for the best; how many methods are better, plus one."""
    metric = f"{direction} {score}"
    values = {m: _value(found, "curves", judge, m, metric) for m in METHODS if m != "random"}
    known = {method: value for method, value in values.items() if value is not None}
    if "cortx" not in known or len(known) < len(values):
        return None
    sign = 1 if more_is_better(direction, score) else -1
    return 1 + sum(sign * value > sign * known["cortx"] for value in known.values())


# Cells --------------------------------------------------------------------------------------------------------------


def _find(found: Sequence[Record], experiment: str, setting: str, method: str, metric: str) -> Record | None:
    wanted = (experiment, setting, method, metric)
    return next((r for r in found if (r["experiment"], r["setting"], r["method"], r["metric"]) == wanted), None)


def _value(found: Sequence[Record], experiment: str, setting: str, method: str, metric: str) -> float | None:
    one = _find(found, experiment, setting, method, metric)
    return None if one is None or one["value"] is None else float(one["value"])


def _best(found: Sequence[Record], judge: str, direction: str, score: str) -> float:
    values = [_value(found, "curves", judge, method, f"{direction} {score}") for method in METHODS]
    choose = max if more_is_better(direction, score) else min
    return choose([value for value in values if value is not None], default=math.nan)


def _cell(found: Sequence[Record], experiment: str, setting: str, method: str, metric: str,
          best: float = math.nan) -> str:  # fmt: skip
    one = _find(found, experiment, setting, method, metric)
    if one is None or one["value"] is None:
        return MISSING
    text = with_spread(float(one["value"]), one["spread"])
    return f"**{text}**" if float(one["value"]) == best else text


def _title(found: Sequence[Record]) -> str:
    return str(found[0]["data"]) if found else ""


def _footer(found: Sequence[Record]) -> str:
    lines = [
        "Areas: mean ± standard deviation of the bootstrap; distances: mean ± standard error over images; one seed; "
        "the best of a column in bold; M and G are millions and thousands of millions."
    ]
    for key in ("hardware", "versions"):
        lines += [f"{key.capitalize()}: {value}." for value in sorted({str(r[key]) for r in found})]
    return "  \n".join(lines)


# For pictures --------------------------------------------------------------------------------------------------------


def curves_of(found: Sequence[Record], judge: str) -> dict[str, dict[str, Any]]:
    """The curves of one judge as ``cortx.plots.masking_curves`` takes them."""
    points = _find(found, "curves", judge, "all", "points")
    if points is None:
        raise InputError(f"the records have no curves of {judge!r}")
    result: dict[str, dict[str, Any]] = {}
    for one in found:
        if one["experiment"] != "curves" or one["setting"] != judge or one["metric"] == "points":
            continue
        direction, score = one["metric"].split(" ")
        method = result.setdefault(METHODS[one["method"]], {"fractions": points["fractions"]})
        method.setdefault(direction, {})[score] = {
            "curve": one["curve"], "auc": one["value"], "auc_std": one["spread"]
        }  # fmt: skip
    return result


def class_names(data: str) -> tuple[str, ...]:
    return CLASSES if data.startswith("CIFAR-10") else tuple("0123456789")


def explanations(study: ImageStudy, images: slice) -> dict[str, Explanation]:
    """What every method found for some of the explained images: all classes, or the one that the surrogate predicts."""
    game = study.surrogate
    rows = game.rows(study.images[images])
    outputs, base = game.full_values(rows), game.empty_values(rows)
    names = class_names(study.data[4])
    found = {}
    for method, title in METHODS.items():
        if method == "random":
            continue
        arrays = np.load(study.path(f"values-{method}", "npz"))
        values = arrays["values" if method in OF_CLASSES else "surrogate"][images].astype(np.float64)
        several = values.ndim == 3
        found[title] = Explanation(
            values, base if several else np.zeros(len(values)), game.players.names, method=method,
            output_names=names if several else None, outputs=outputs if several else None,
        )  # fmt: skip
    return found


def heat(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, npt.NDArray[np.float64]], npt.NDArray[np.int64]]:
    """From "method|judge" or "method|values" to (images, players) of each method, and the class shown, (images,).

    The class is the one that the surrogate predicts, "classes".
    """
    classes = np.asarray(arrays["classes"])
    found = {}
    for method, title in METHODS.items():
        key = f"{method}|{'values' if method in OF_CLASSES else 'surrogate'}"
        if method == "random" or key not in arrays:
            continue
        values = np.asarray(arrays[key], dtype=np.float64)
        found[title] = values[np.arange(len(values)), :, classes] if values.ndim == 3 else values
    return found, classes


def check_libraries(*, quick: bool = False) -> None:
    """Fails before any work where a library that the study needs is missing."""
    needed = [
        ("matplotlib", "matplotlib", "drawing the pictures", "plots"),
        ("captum", "captum", "the comparison with gradient methods", "peers"),
        ("skimage", "scikit-image", "the comparison with XRAI", "peers"),
    ]
    if quick:
        needed.append(("sklearn", "scikit-learn", "the data set digits", "demo"))
    for module, name, why, extra in needed:
        if importlib.util.find_spec(module) is None:
            raise need(name, why, extra)


def facts_of(study: ImageStudy) -> dict[str, dict[str, Any]]:
    """What the stages left in the study's folder."""
    return {stage: study.facts(stage) for stage in STAGES if study.path(stage, "json").exists()}
