"""Diagnosis: findings about machine, scheduler, files and database, each with its remedy (`gpas doctor`).

examine      every finding, cheapest first
slurm        the configuration of a cluster
preemption   how long jobs have to save before they are killed
nodes        short jobs that report what compute nodes see
probe        the script of such a job; needs only Python
"""
