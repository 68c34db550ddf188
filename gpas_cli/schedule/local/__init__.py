"""The scheduler of this machine.

scheduler    LocalScheduler: the protocol
run          one `gpas run`: a queue of stages, free slots, one process per attempt
process      one attempt: its slots, its directory, its process, its exit
benchmark    measure how fast cells train here (`gpas bench`)
"""
