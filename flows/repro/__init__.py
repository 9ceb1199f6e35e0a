"""Reproducing stages: params.yaml, dvc.yaml through DVC, and single stages without it."""
