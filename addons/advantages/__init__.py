"""Other advantages than those of whole episodes by their scores."""
