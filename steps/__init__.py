"""The stages, and the rooms that they share. Nothing here imports Prefect; imports run flows -> steps -> environments."""
