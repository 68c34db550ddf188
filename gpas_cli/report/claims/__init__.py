"""Claims: statements about recorded numbers, the papers' and the user's own, and what the results say about them.

declared       the claims of a file and of the papers, and their selection by name, grid and source
checks         whether the metrics, curves and published tables that claims name exist
measure        the number that one run contributes: a metric, or a feature of a curve
pairs          subjects with their bases, by seed
significance   p values and intervals of effects over seeds
evaluate       a claim + what is recorded -> `Verdict`
verdict        `Verdict` and its parts
sequential     evidence that stays valid however often it is read
rounds         which seeds to run next
commands       the commands that run what is missing
"""
