"""Figures of the papers, trained again and held to the papers' own points.

`command` knows a tuple of `paper.Paper`, one a paper, and nothing else of them. A paper brings a
`catalogue` of figures and the programs that make their records. What papers share stands here:
`store` keeps their runs, `comparison` has the tolerances, `claims` the verdicts on what a paper
says, `page` and `pictures` write the results.
"""
