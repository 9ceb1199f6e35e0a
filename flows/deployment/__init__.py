"""Flows that a Prefect server schedules: settings, pages, worktrees, automations, services."""
