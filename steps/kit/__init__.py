"""Mechanisms that are there once, for all above them: processes of our own, locks, the guard of a server.

What environments need of that kind, children that speak JSON and HTTP, is in environments/kit/.
"""
