"""What the doctor looks at of the keys of Langfuse and Weights & Biases."""

from __future__ import annotations

from flows.diagnosis.findings import Parts

ADDRESS = (r"\w+://\S+", "an address such as https://host")
PARTS = Parts(
    forms={
        "LANGFUSE_PUBLIC_KEY": (r"pk-lf-[!-~]+", "pk-lf-…"),
        "LANGFUSE_SECRET_KEY": (r"sk-lf-[!-~]+", "sk-lf-…"),
        "WANDB_API_KEY": (r"[A-Za-z0-9_-]{40,}", "at least 40 letters and digits"),
        "FLYWHEEL_TRACE_RATE": (r"0|1|0?\.\d+|1\.0*|0\.?", "a number from 0 to 1"),
        **dict.fromkeys(("LANGFUSE_HOST", "LANGFUSE_BASE_URL"), ADDRESS),
    },
    pairs=(("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"),),
)
