"""The scheduler of this machine.

scheduler    LocalScheduler: the protocol
run          one `gpas run`: a queue of stages, free slots, one process per attempt
slots        accelerators or cores, shared by every `gpas run` on one runs directory
process      one attempt: its directory, its process, its exit
benchmark    measure how fast cells train here (`gpas bench`)
"""
