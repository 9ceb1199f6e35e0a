try: ready install  ## a few attempts at a task in 20 s: what the policy can do, and the way that training takes (TASK=name)
	@$(RUN) python -m addons.readiness.probe $(if $(TASK),--task $(TASK)) $(if $(PRESET),--preset $(PRESET)) $(ARGS)
