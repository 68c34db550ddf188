"""Events are journalled in the run directory by the job, and ingested into SQL rows by whoever reads results.

    journal      one job's append-only file of checksummed events          (standard library only)
    rundir       where an attempt keeps its files, and how one is created  (standard library only)
    files        opening what should be a regular file                     (standard library only)
    schema       the tables, as SQLAlchemy models
    session      opening a database, and refusing one that is not ours or not of this version
    owner        which project a database belongs to
    projection   events of a journal -> the columns and points that they change
    points       writing metrics and curves
    ingest       run directories -> rows, incrementally
    agreement    whether rows and run directories agree
    maintenance  upgrade, check, rebuild, backup

Nothing is imported here: a job needs the journal alone and must not pay for SQLAlchemy.
"""
