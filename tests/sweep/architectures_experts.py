"""Mixtures of experts of Hugging Face transformers; their grouped products do not run in float64."""

from __future__ import annotations

import torch

from .architecture import hugging_face, language_batch
from .architectures_text import DECODER, DECODER_LAYERS

ARCHITECTURES = (
    hugging_face(
        "mixtral",
        "Mixtral",
        "ForCausalLM",
        language_batch,
        DECODER_LAYERS,
        {**DECODER, "num_local_experts": 4},
        family="mixture of experts",
        dtype=torch.float32,
        tolerance=1e-5,
        allow=("transformers",),
    ),
    hugging_face(
        "qwen3_moe",
        "Qwen3Moe",
        "ForCausalLM",
        language_batch,
        DECODER_LAYERS,
        {
            **DECODER,
            "head_dim": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 12,
            "decoder_sparse_step": 1,
        },
        family="mixture of experts",
        dtype=torch.float32,
        tolerance=1e-5,
        allow=("transformers",),
    ),
    hugging_face(
        "gpt_oss",
        "GptOss",
        "ForCausalLM",
        language_batch,
        DECODER_LAYERS,
        {
            **DECODER,
            "head_dim": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        family="mixture of experts",
        dtype=torch.float32,
        tolerance=1e-5,
        allow=("transformers",),
    ),
    hugging_face(
        "deepseek_v3",
        "DeepseekV3",
        "ForCausalLM",
        language_batch,
        DECODER_LAYERS,
        {
            **DECODER,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 12,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 4,
        },
        family="mixture of experts",
        dtype=torch.float32,
        tolerance=1e-5,
        allow=("transformers",),
    ),
)
