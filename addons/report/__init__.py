"""What a run shows at its end: run/report.html, and a test scenario before and after."""
