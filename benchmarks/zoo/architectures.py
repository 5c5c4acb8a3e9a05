"""The architectures that the installed `transformers` knows."""

from __future__ import annotations

FAMILIES = ("causal", "seq2seq", "masked", "vision")


def architectures(family: str) -> list[str]:
    from transformers.models.auto import modeling_auto

    found = {
        "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "vision": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    }
    return list(found[family])


def versions() -> str:
    import torch
    import transformers

    return f"torch {torch.__version__}, transformers {transformers.__version__}"
