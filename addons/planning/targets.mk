AFTER_MCP += addons.planning.servers

plan: install  ## say what a run needs: memory, seconds, money (TASK=name, ARGS="--gpu h100-80 --price 2.5 --set policy.dtype=bfloat16")
	@$(RUN) python -m addons.planning $(if $(TASK),--task $(TASK)) $(ARGS)
