"""Hours of devices: their unit and their text."""

import pytest

from gpas_cli.state.usage import _CORE_HOURS, _GPU_HOURS, NOTHING, Usage, usage_of
from gpas_cli.structure import plain


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.0, "0.00"), (0.0123456, "0.0123"), (0.5, "0.50"), (9.87, "9.87"), (1204.54, "1,204.5")],
)
def test_hours_as_text(hours: float, text: str) -> None:
    assert Usage(gpu_hours=hours).hours(_GPU_HOURS) == Usage(core_hours=hours).hours(_CORE_HOURS) == text


def test_the_unit_is_that_of_the_devices() -> None:
    on_gpus = usage_of(1800, ["gpu-0", "gpu-1"])
    on_cores = usage_of(1800, ["cpu-0", "cpu-1", "cpu-2"])
    assert on_gpus.unit == (on_gpus + on_cores).unit == _GPU_HOURS
    assert on_cores.unit == NOTHING.unit == _CORE_HOURS
    assert plain(on_gpus + on_cores) == {"gpu_hours": 1.0, "core_hours": 1.5}
