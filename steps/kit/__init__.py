"""Mechanisms that are there once, for all above them: processes of our own, locks, sockets, the guard of a server.

Children that speak JSON, and requests over HTTP, which environments need too, are in environments/kit/.
"""
