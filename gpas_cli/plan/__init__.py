"""The plan of a run: the jobs that it would start, and their estimated cost.

stage_jobs   cells -> the jobs that they need, each stage once, parents first
plan         cells -> the action of `gpas run` for each, and the jobs that it would start
texts        whether the texts that cells read are available
stages       the jobs by stage: what they ask for, and their cost
tokenisation the jobs that tokenise those texts beforehand
machine      the accelerators and cores of this machine, or of the nodes behind a scheduler
elsewhere    the cost of jobs on common GPUs, where a machine has too few
device_memory the predicted memory of each GPU, by size of network
gpus         named GPUs (H100:8) to plan for
estimate     jobs -> GPU-hours, core-hours, wall-clock hours
speed        measured speeds, by the shape of a training
sizes        the cost by size of network
bench_cost   the cost of measuring speed
usage        the cost of attempts so far, and the estimated end
undeclared   cells in run directories that no grid declares
"""
