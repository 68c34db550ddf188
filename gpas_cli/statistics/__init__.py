"""Statistics of runs.

stats       mean, spread and paired differences over seeds, their t tests, Holm's adjustment, the seeds a test needs;
            laws of growth, compared by AIC
"""
