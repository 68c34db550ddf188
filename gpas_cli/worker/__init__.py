"""What a job runs.

job          the entry point: every process of an attempt runs it
ranks        the parent of several processes on one machine
rendezvous   the rank of this process, and the address where the processes of a job meet
stages       one module per kind of stage
inputs       removal of the unfinished checkpoints of earlier attempts
tokenise     the job that tokenises a text
bench        the process that measures the speed of one cell
environment  facts about machine and software that are recorded with an attempt
stdio        output that survives a full disk
"""
