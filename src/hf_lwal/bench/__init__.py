"""Grids of trainings that compare ways of learning from labels, and reports of what they gave.

``hf-lwal compare`` runs a grid and ``hf-lwal report`` turns its lines into tables and pictures.
"""
