"""Run directories, to which jobs write, and the database, into which their journals are ingested.

    journal      one job's append-only file of checksummed events          (standard library only)
    rundir       where an attempt keeps its files, and how one is created  (standard library only)
    schema       the tables, as SQLAlchemy models
    peek         reading an SQLite database without SQLAlchemy
    session      opening a database of exactly this version
    driver_errors  explaining errors of the database drivers
    owner        which project a database belongs to
    projection   events of a journal -> the columns and points that they change
    attempt_rows attempts -> their rows, metrics and curves, a stretch of journals at a time
    ingest       run directories -> rows, incrementally
    maintenance  upgrade, check, rebuild, backup

Nothing is imported here, so that a job, which needs only the journal, does not import SQLAlchemy.
"""
