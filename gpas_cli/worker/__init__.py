"""What a job runs.

job          the entry point: every process of an attempt runs it
ranks        the processes of a job: their ranks and meeting point, their parent, their output
stages       what runs each kind of stage
tokenise     the job that tokenises a text
bench        the process that measures the speed of one cell
environment  facts about machine and software that are recorded with an attempt
"""
