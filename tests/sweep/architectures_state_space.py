"""State space and recurrent models of Hugging Face transformers."""

from __future__ import annotations

from .architecture import VOCABULARY, hugging_face, language_batch
from .architectures_text import DECODER, DECODER_LAYERS

ARCHITECTURES = (
    hugging_face(
        "mamba",
        "Mamba",
        "ForCausalLM",
        language_batch,
        ("backbone.layers.*",),
        {"vocab_size": VOCABULARY, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "use_cache": False},
        family="state space",
    ),
    hugging_face(
        "mamba2",
        "Mamba2",
        "ForCausalLM",
        language_batch,
        ("backbone.layers.*",),
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "state_size": 4,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 4,
            "use_cache": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        family="state space",
    ),
    hugging_face(
        "rwkv",
        "Rwkv",
        "ForCausalLM",
        language_batch,
        ("rwkv.blocks.*",),
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "attention_hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "context_length": 8,
            "use_cache": False,
        },
        family="state space",
    ),
    hugging_face(
        "recurrent_gemma",
        "RecurrentGemma",
        "ForCausalLM",
        language_batch,
        DECODER_LAYERS,
        {
            **DECODER,
            "num_hidden_layers": 3,
            "lru_width": 16,
            "attention_window_size": 4,
            "head_dim": 4,
        },
        family="state space",
        refused="the forward assigns to attribute 'conv1d_state' of module 'model.layers.0.temporal_block'",
        note="keeps its recurrent state as an attribute, a new tensor in each step",
    ),
    hugging_face(
        "xlstm",
        "xLSTM",
        "ForCausalLM",
        language_batch,
        ("backbone.blocks.*",),
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_heads": 2,
            "chunk_size": 4,
            "chunkwise_kernel": "chunkwise--native_autograd",
            "sequence_kernel": "native_sequence__native",
            "step_kernel": "native",
            "mode": "train",
            "use_cache": False,
        },
        family="state space",
    ),
)
