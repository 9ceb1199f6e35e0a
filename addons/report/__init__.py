"""What a run shows: tables in Prefect's pages, and at its end run/report.html, and a test scenario before and after."""
