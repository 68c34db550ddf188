"""What is wrong with claims when experiments.yaml is read: metrics, curves and published tables that they name."""

from collections.abc import Iterable, Iterator, Sequence

from gpas_cli.errors import GpasError, Problem, nearest
from gpas_cli.extensions.claims.declared import paper_claims
from gpas_cli.grid.declared import FITTED, Claim, Comparison, Experiments, Feature, sections_of
from gpas_cli.grid.packs import Pack
from gpas_cli.grid.read import labels_of
from gpas_cli.report.papers import published
from gpas_cli.report.quantities import DIVERGED, SPIKES, STATE_METRICS, Quantity, metric, quantity
from gpas_cli.spec.stage import CONVERGENCE, PRETRAIN, Metric, StageKind
from gpas_cli.statistics.power_law import LEAST_POINTS


def problems(experiments: Experiments, packs: Sequence[Pack]) -> Iterator[Problem]:
    """Yield the problems of the claims of a file and of packs. Raises InvalidExperiments for a file of a pack."""
    claims = dict(experiments.claims)
    for pack in packs:
        claims |= paper_claims(pack, experiments)
    for claim in (claim for sizes in claims.values() for claim in sizes):
        for comparison in claim.comparisons:
            yield from _comparison_problems(experiments, claim, comparison)


def _comparison_problems(experiments: Experiments, claim: Claim, comparison: Comparison) -> Iterator[Problem]:
    kinds = list(experiments.catalogue.stage_kinds.values())
    if fault := feature_fault(comparison.value, kinds):
        yield _claim_problem(claim, comparison, fault, "value")
        return
    if comparison.value.metric in CONVERGENCE and not comparison.against:
        message = f"'{comparison.value.metric}' compares a cell with its base; add `against`"
        yield _claim_problem(claim, comparison, message, "value")
    labels = labels_of(experiments.grids, *(name for name in comparison.grids if name in experiments.grids))
    for axis in comparison.value.along:
        if axis not in labels or axis in comparison.by:
            message = f"'{axis}' is also in `by`" if axis in labels else f"no axis '{axis}'; {nearest(axis, labels)}"
            yield _claim_problem(claim, comparison, message, "value")
        elif (points := len(set(labels[axis]))) < (least := LEAST_POINTS + (comparison.value.take == "offset")):
            message = f"an {comparison.value.take} needs {least} points, and '{axis}' has {points}"
            yield _claim_problem(claim, comparison, message, "value")
    needed = state_metric(comparison.value, kinds).stage
    for name in comparison.grids:
        grid = experiments.grids.get(name)
        if grid and needed != PRETRAIN and needed not in sections_of(experiments.grids, grid):
            message = f"'{comparison.value.title}' comes from the stage '{needed}', which no cell of '{name}' has"
            yield _claim_problem(claim, comparison, message, "value")
    for pack, name in comparison.published.items():
        try:
            published(pack, name)
        except GpasError as error:
            yield _claim_problem(claim, comparison, str(error), "published", pack.name)


def _claim_problem(claim: Claim, comparison: Comparison, message: str, *path: str) -> Problem:
    mark = comparison.marks.get(path[0], comparison.mark)
    return Problem(("claims", claim.name, *path), message, str(mark))


def state_metric(feature: Feature, kinds: Iterable[StageKind]) -> Metric:
    """Return the metric whose stage reports the feature. Raises GpasError for an unknown metric or curve."""
    if feature.metric and feature.metric != DIVERGED:
        return metric(feature.metric.partition("/")[0], kinds)
    if feature.curve:
        curve_of(feature)
    return metric(STATE_METRICS.get(feature.curve, "loss"), kinds)


def curve_of(feature: Feature) -> Quantity:
    """Return the curve that the feature is taken from. Raises GpasError with the nearest name."""
    return SPIKES[feature.curve] if feature.curve in SPIKES else quantity(feature.curve)


def feature_fault(feature: Feature, kinds: Iterable[StageKind] = ()) -> str:
    """Return what is wrong with a declared feature, "" if nothing is. `kinds` are the stages that plugins add."""
    try:
        state_metric(feature, kinds)
    except GpasError as error:
        return str(error)
    if bool(feature.along) != (feature.take in FITTED) or (feature.along and not feature.metric):
        return f"a law is {{metric: loss, along: AXIS, take: {' or '.join(FITTED)}}}"
    if not feature.curve:
        name, slash, _ = feature.metric.partition("/")
        untasked = slash and not state_metric(feature, kinds).by_task
        return f"'{name}' has no tasks; write {name}" if untasked else ""
    drawn = curve_of(feature)
    if drawn.spans or drawn.bins:
        has = "a distribution of each layer" if drawn.bins else "a value for every pair of layers"
        return f"'{feature.curve}' has {has}; a claim needs one value for every layer or update"
    if feature.layers != ("all",) and not drawn.by_layer:
        return f"'{feature.curve}' is not recorded by layer"
    if feature.take.endswith(("slope", "-aic")) and drawn.by_layer and feature.updates == "all":
        what = "slope" if feature.take.endswith("slope") else "law of growth"
        return f"a {what} over layers is taken at one update; write updates: last, or a number"
    if feature.take == "early-change" and feature.updates != "all":
        return "early-change compares updates; write updates: all"
    if feature.take == "count" and isinstance(feature.updates, int):
        return "a count is of all updates; leave out updates"
    return ""
