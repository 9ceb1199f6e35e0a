"""What `python -m flows.doctor` looks at: the machine, the folder's files and locks, processes, servers and keys."""
