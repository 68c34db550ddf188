"""Statistics of runs.

stats       mean, spread and paired differences over seeds, their t tests, Holm's adjustment, the seeds a test needs
sequential  a test that holds under optional stopping
growth      a power law and an exponential, compared by AIC
"""
