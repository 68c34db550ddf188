"""Faults of a SLURM cluster that is used by the chaos run alone."""

import signal
import subprocess
import time
from contextlib import suppress

from cluster import NODES, Cluster

from chaos_kit.faults import NOTHING, Fault, Field, Hit, aim, choose, delay, supervisors
from chaos_kit.plan import Step

PATIENCE = 600.0  # seconds for a cluster to come up again on a busy machine
CLUSTER = "cluster"  # the name of lasting faults of daemons
URGENT = "chaos-urgent"  # the name of the jobs that preempt others


def cluster_of(field: Field) -> Cluster:
    assert field.project.cluster is not None, "these faults need a cluster"
    return field.project.cluster


def repair(cluster: Cluster) -> None:
    """Start every dead daemon and wait for the nodes. Raise TimeoutError if they do not come up."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            cluster.up()
            return
        except (TimeoutError, RuntimeError, subprocess.TimeoutExpired):
            if time.monotonic() > until:
                raise


def release_held(cluster: Cluster) -> int:
    """Release the jobs that SLURM holds because a node failed to launch them; return their number."""
    rows = [line.split("|") for line in _ask(cluster, "squeue", "-h", "-r", "-o", "%i|%r").splitlines()]
    held = [words[0] for words in rows if "held" in words[-1].lower()]
    for job in held:
        _ask(cluster, "scontrol", "release", job)
    return len(held)


def _ask(cluster: Cluster, *words: str) -> str:
    """Return the output of a SLURM command, or "" if the controller does not answer."""
    try:
        return cluster.run(*words, check=False)
    except subprocess.TimeoutExpired:
        return ""


def _elements(field: Field, state: str) -> list[str]:
    lines = _ask(cluster_of(field), "squeue", "-h", "-r", "-t", state, "-o", "%i %j").splitlines()
    return [line.split()[0] for line in lines if line.split()[1].startswith("gpas-")]


def _on_element(words: tuple[str, ...], states: str = "PD,R") -> Fault:
    def fault(field: Field, step: Step) -> Hit:
        delay(step, 1.0)
        found = _elements(field, states)
        if not found:
            return NOTHING
        job = choose(found, step.draws[0])
        _ask(cluster_of(field), *words, job)
        return "", f"{' '.join(words)} {job}"

    return fault


def kill_supervisor(field: Field, step: Step) -> Hit:
    process = aim(field, step, lambda: list(supervisors(field)))
    if process is None:
        return NOTHING
    delay(step, 1.0)
    return ("", f"SIGKILL to the supervisor {process.pid}") if process.kill() else NOTHING


def preempt(field: Field, step: Step) -> Hit:
    """Submit an urgent job that takes one or more nodes for a second."""
    nodes = str(1 + int(step.draws[0] * NODES))
    words = ("-p", "high", "-N", nodes, "--exclusive", "-t", "1", "-J", URGENT, "-o", "/dev/null", "--wrap", "sleep 1")
    if URGENT in _ask(cluster_of(field), "squeue", "-h", "-o", "%j"):
        return NOTHING
    _ask(cluster_of(field), "sbatch", *words)
    return "", f"an urgent job takes {nodes} nodes"


def stop_controller(field: Field, step: Step) -> Hit:
    cluster = cluster_of(field)
    seconds = 1 + 8 * step.draws[1]
    pid = cluster.alive("slurmctld")
    cluster.kill("slurmctld", signal.SIGSTOP)
    field.lasting(seconds, CLUSTER).callback(cluster.kill, "slurmctld", signal.SIGCONT)
    return "slurmctld", f"SIGSTOP to the controller {pid}, for {seconds:.1f} s"


def kill_controller(field: Field, step: Step) -> Hit:
    cluster = cluster_of(field)
    seconds = 6 * step.draws[1]
    pid = cluster.alive("slurmctld")
    cluster.kill("slurmctld", signal.SIGKILL)
    field.lasting(seconds, CLUSTER).callback(repair, cluster)
    return "slurmctld", f"SIGKILL to the controller {pid}; started again in {seconds:.1f} s"


def kill_node_daemon(field: Field, step: Step) -> Hit:
    cluster = cluster_of(field)
    node = _node(step)
    seconds = 6 * step.draws[1]
    cluster.kill(f"slurmd.{node}", signal.SIGKILL)
    field.lasting(seconds, CLUSTER).callback(repair, cluster)
    return node, f"SIGKILL to slurmd on {node}; started again in {seconds:.1f} s"


def power_off(field: Field, step: Step) -> Hit:
    cluster = cluster_of(field)
    node = _node(step)
    seconds = 6 * step.draws[1]
    with suppress(RuntimeError, subprocess.TimeoutExpired):  # a busy controller notices by itself
        cluster.power_off(node)
    field.lasting(seconds, CLUSTER).callback(repair, cluster)
    return node, f"{node} loses its power; back in {seconds:.1f} s"


def _node(step: Step) -> str:
    return f"n{1 + int(step.draws[0] * NODES)}"


def _alone(fault: Fault) -> Fault:
    """Allow one daemon fault at a time: while one daemon is stopped, the others could not be restarted."""

    def alone(field: Field, step: Step) -> Hit:
        return NOTHING if field.lasts(CLUSTER) else fault(field, step)

    return alone


FAULTS: dict[str, Fault] = {
    "kill-supervisor": kill_supervisor,
    "requeue": _on_element(("scontrol", "requeue")),
    "scancel": _on_element(("scancel",)),
    "slurm-term": _on_element(("scancel", "--full", "--signal=TERM"), "R"),
    "preempt": preempt,
    "controller-stop": _alone(stop_controller),
    "controller-kill": _alone(kill_controller),
    "node-daemon-kill": _alone(kill_node_daemon),
    "node-off": _alone(power_off),
}
