"""Where numbers come from.

provenance  the attempts at one stage, and how its cell differs from its base
number      a number of a table: its runs, its average, its base, the command that makes it again
diff        what differs between two cells
dependents  which recorded stages build on others
archive     tables with everything behind their numbers, in one file
"""
