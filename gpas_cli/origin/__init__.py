"""Where numbers come from.

provenance  the attempts at a stage and how its cell differs from its base; a number of a table: its runs, its average,
            its base, the command that makes it again
diff        what differs between two cells
"""
