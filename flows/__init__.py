"""Flows and commands. They import steps and environments, which import none of them."""
