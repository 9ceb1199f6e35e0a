"""The GRPO update: batches, packing, the loss, the trainer, and the checks a batch must pass."""
