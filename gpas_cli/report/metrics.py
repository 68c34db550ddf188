"""The metrics that a table can show: title, unit, better direction, and the stage that reports them."""

from __future__ import annotations

from dataclasses import dataclass

from gpas_cli.errors import GpasError, nearest


@dataclass(frozen=True)
class Metric:
    """A metric. `digits` are shown after the point; numbers equal in these digits tie. `kind` is its name in papers."""

    name: str
    title: str
    better: str = "lower"
    digits: int = 2
    unit: str = ""
    stage: str = "pretrain"
    kind: str = ""

    @property
    def family(self) -> str:
        """The name under which published tables have the metric."""
        return self.kind or self.name

    def recorded_as(self, task: str) -> str:
        """Return the name under which a run reports it: downstream scores have one per task, and "average"."""
        return f"{self.name}/{task}" if self.stage == "downstream" else self.name


METRICS = {
    metric.name: metric
    for metric in (
        Metric("perplexity", "validation perplexity"),
        Metric("perplexity_reference", "validation perplexity, as the reference averages it", kind="perplexity"),
        Metric("loss", "validation loss", "lower", 3, "nats/token"),
        Metric(
            "loss_reference", "validation loss, as the reference averages it", "lower", 3, "nats/token", kind="loss"
        ),
        Metric("loss_batch_mean", "validation loss, mean of batch means", "lower", 3, "nats/token", kind="loss"),
        Metric("bits_per_byte", "validation bits per byte", digits=3),
        Metric("accuracy", "accuracy", better="higher", unit="%", stage="downstream"),
        Metric("mean_importance", "mean rise without a layer", "higher", 4, "nats/token", stage="importance"),
        Metric("train_seconds", "training time", digits=0, unit="s"),
        Metric("tokens_per_second", "training throughput", better="higher", digits=0, unit="tokens/s"),
    )
}


def metric(name: str) -> Metric:
    """Return the metric called `name`. Raises GpasError with the nearest name."""
    if name not in METRICS:
        raise GpasError(f"unknown metric '{name}'; {nearest(name, METRICS)}")
    return METRICS[name]
