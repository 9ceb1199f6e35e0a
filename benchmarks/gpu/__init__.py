"""What `make gpu-check` and `make gpu-train` run on a machine with a GPU."""
