"""Agents by clients that nobody here wrote, unpatched, as rollout functions: what tests/support/storm.py plays.

Each counts its own calls, so that a test can compare them with what the gateway recorded. They are given a question, tools
that answer anything, and a policy that was trained for another task: what they come to does not matter here.
"""
