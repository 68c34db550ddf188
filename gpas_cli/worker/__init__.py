"""What a job runs.

job          one attempt, as the first or as a further process of it
ranks        the parent of several processes on one machine
rendezvous   which process of a job this one is, and where the processes meet
tokenise     the job that tokenises a text
bench        the process that measures the speed of one cell
environment  facts about machine and software that are recorded with an attempt
stdio        output that survives a full disk
"""
