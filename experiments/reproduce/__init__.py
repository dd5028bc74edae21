"""Figures of the papers, trained again and held to the papers' own points.

`figures` lists what can be reproduced and reads the points, `comparison` is the tolerance, `report` writes the results;
each kind of figure is a module of its own (`gaussian_curves`).
"""
