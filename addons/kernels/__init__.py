"""Faster layers for updates: backward passes of their own, and compiled parts on a GPU."""
