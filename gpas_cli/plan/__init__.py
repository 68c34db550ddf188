"""The plan of a run: the jobs that it would start, and their estimated cost.

stage_jobs   cells -> the jobs that they need, each stage once, parents first
plan         cells -> the action of `gpas run` for each, and the jobs that it would start
texts        whether the texts that cells read are available, and the jobs that tokenise them beforehand
machine      the accelerators and cores of this machine, of the nodes behind a scheduler, or named for a plan (H100:8)
estimate     jobs -> GPU-hours, core-hours, wall-clock hours, from measured or assumed speeds
costs        the cost and the memory of jobs by stage and by size of network, and what they add to the disks
usage        the cost of attempts so far, and the estimated end
undeclared   cells in run directories that no grid declares
"""
