"""Statistics of runs.

stats         mean, spread and paired differences over seeds, with their intervals
multiplicity  Holm's adjustment of several p values
power         how many further seeds a t test needs
sequential    a test that holds under optional stopping
"""
