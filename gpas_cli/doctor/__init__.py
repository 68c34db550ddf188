"""Diagnosis: findings about machine, scheduler, files and database, each with its remedy (`gpas doctor`).

examine      every finding, cheapest first
slurm        the configuration of a cluster
preemption   how long jobs have to save before they are killed
nodes        what compute nodes see, asked in short jobs
probe        what such a job runs; needs only Python
"""
