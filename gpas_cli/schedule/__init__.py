"""Who runs the jobs: a `Scheduler`, chosen once.

scheduler    the protocol, and the choice between schedulers
summary      how a run reports its progress, and how it ended
process      what every scheduler needs to start and to recognise the process of an attempt
cancel       cancel stages, wherever they run
extras       optional libraries that a run needs
local/       slots and processes of this machine
slurm/       job arrays of a SLURM cluster
"""
