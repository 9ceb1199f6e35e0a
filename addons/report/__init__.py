"""What people read of a run: Prefect's pages, run/report.html, a test scenario before and after, the model's card."""
