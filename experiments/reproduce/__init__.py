"""Figures of the papers, trained again and held to the papers' own points.

`figures` lists what can be reproduced and reads the points; `plans` says which settings and steps a
figure needs; `runs` trains and keeps what all of them share. Each kind of figure is a program of
its own (`gaussian_curves`, `gaussian_settings`, `gaussian_times`) that hands a `work.Work` to the
command; `beside` puts sound mechanisms, held-out errors and simple controls next to what the paper
plots. `stopping` has the rules that end a run, `comparison` the tolerances; `report` and `pictures`
write the results.
"""
