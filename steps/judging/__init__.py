"""The rule, the port of other judges, and the watch on reward and success."""
