"""Slots: the resources of the machine, how jobs take them, and that CPU and GPU masks compose."""

from pathlib import Path

from gpas_cli.plan.machine import ThisMachine
from gpas_cli.schedule.local.process import Slots
from gpas_cli.spec.run import Resources

CORES = ThisMachine(gpus=(), cores=(0, 1, 2))
GPUS = ThisMachine(gpus=("0", "1", "2"), cores=(0, 1, 2, 3))


def test_cores_are_taken_once(tmp_path: Path) -> None:
    pool = Slots(tmp_path, CORES)
    one, two = pool.take(Resources()), pool.take(Resources(cpus=2))
    assert one is not None
    assert two is not None
    assert set(one.devices).isdisjoint(two.devices)
    assert (one.threads, two.threads) == (1, 2)
    assert two.variables["OMP_NUM_THREADS"] == "2"
    assert two.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert Slots(tmp_path, CORES).take(Resources()) is None
    two.close()
    again = pool.take(Resources(cpus=2))
    assert again is not None
    again.close()
    one.close()


def test_too_few_free_slots_are_left_untouched(tmp_path: Path) -> None:
    pool = Slots(tmp_path, CORES)
    held = pool.take(Resources())
    assert held is not None
    assert pool.take(Resources(cpus=3)) is None
    rest = pool.take(Resources(cpus=2))
    assert rest is not None
    rest.close()
    held.close()
    every = pool.take(Resources(cpus=99))
    assert every is not None  # capped at the number of cores
    every.close()


def test_gpus_are_taken_by_name_under_any_mask(tmp_path: Path) -> None:
    narrow, wide = Slots(tmp_path, ThisMachine(("1",), (0,))), Slots(tmp_path, GPUS)
    first = narrow.take(Resources())
    second = wide.take(Resources(gpus=2, cpus=2))
    assert first is not None
    assert second is not None
    assert first.variables["CUDA_VISIBLE_DEVICES"] == "1"
    assert second.variables["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert second.threads == 2
    assert wide.take(Resources()) is None
    first.close()
    second.close()
