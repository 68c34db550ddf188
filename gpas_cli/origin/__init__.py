"""Where numbers come from.

provenance  the attempts at one stage, how its cell differs from its base, and which stages build on it
number      a number of a table: its runs, its average, its base, the command that makes it again
diff        what differs between two cells
archive     tables with everything behind their numbers, in one file; `anonymous` takes out names
"""
