"""Mechanisms that are there once, for this folder and for all above it: programs of others, and requests over HTTP."""
