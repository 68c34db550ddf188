"""Diagnosis: findings about machine, schedulers, files and database, each with its remedy (`gpas doctor`).

examine      every finding, cheapest first; those about a scheduler come from the scheduler (`schedule.scheduler`)
"""
