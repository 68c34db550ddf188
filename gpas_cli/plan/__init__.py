"""What a run would do and cost, before anything starts.

stage_jobs   cells -> the jobs that they need, each stage once, parents first
plan         cells -> what `gpas run` would do with each, and the jobs it would start
texts        whether the texts that cells read are available
tokenisation the jobs that tokenise those texts first
machine      the accelerators and cores of this machine, or of the nodes behind a scheduler
gpus         named GPUs (H100:8) that a plan can be made for
estimate     jobs -> GPU-hours, core-hours, hours on the clock
speed        measured speeds, by the shape of a training
sizes        the cost by size of network
bench_cost   what a measurement of speed would cost
usage        what running and finished attempts have cost, and when the rest ends
undeclared   cells in run directories that no grid declares
"""
