"""Claims: statements about recorded numbers, the papers' and the user's own, and what the results say about them.

declared    the claims of a file and of the papers, and their selection by name, grid and source
measure     the number that one run contributes, and subjects paired with their bases by seed
evaluate    a claim + what is recorded -> `Verdict`; p values and intervals; the command that adds what is missing
verdict     `Verdict` and its parts; evidence that stays valid however often it is read
campaign    rounds of runs that add seeds until claims are decided
"""
