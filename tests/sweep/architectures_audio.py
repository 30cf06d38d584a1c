"""Audio models of Hugging Face transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .architecture import VOCABULARY, hugging_face, tokens

_SPEECH = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "conv_dim": [8, 8],
    "conv_stride": [4, 2],
    "conv_kernel": [8, 3],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "final_dropout": 0.0,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    "apply_spec_augment": False,
    "ctc_loss_reduction": "mean",
    "pad_token_id": 0,
}


def _freeze_feature_encoder(model: Any) -> None:
    """Freeze the convolutions, as fine-tuning does; without, the forward sets ``requires_grad`` of its input."""
    model.freeze_feature_encoder()


def _waves(rows: int) -> dict[str, Tensor]:
    """Return waveforms and a class each."""
    return {"input_values": torch.randn(rows, 200), "labels": torch.randint(0, 3, (rows,))}


_CLASSES = {**_SPEECH, "num_labels": 3, "classifier_proj_size": 8}

ARCHITECTURES = (
    hugging_face(
        "whisper",
        "Whisper",
        "ForConditionalGeneration",
        lambda rows: {"input_features": torch.randn(rows, 8, 16), "labels": tokens(rows)},
        ("model.encoder.layers.*", "model.decoder.layers.*"),
        {
            "vocab_size": VOCABULARY,
            "num_mel_bins": 8,
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "max_source_positions": 8,
            "max_target_positions": 16,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            "use_cache": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        family="audio",
    ),
    hugging_face(
        "wav2vec2",
        "Wav2Vec2",
        "ForSequenceClassification",
        _waves,
        ("wav2vec2.encoder.layers.*",),
        _CLASSES,
        family="audio",
        prepare=_freeze_feature_encoder,
    ),
    hugging_face(
        "wav2vec2_ctc",
        "Wav2Vec2",
        "ForCTC",
        lambda rows: {"input_values": torch.randn(rows, 200), "labels": tokens(rows, 6)},
        ("wav2vec2.encoder.layers.*",),
        _SPEECH,
        family="audio",
        refused="cannot capture: data-dependent branching: `if`, `while`, `and` or `assert` on a tensor",
        note="branches on the largest label",
    ),
    hugging_face(
        "hubert",
        "Hubert",
        "ForSequenceClassification",
        _waves,
        ("hubert.encoder.layers.*",),
        _CLASSES,
        family="audio",
        prepare=_freeze_feature_encoder,
    ),
    hugging_face(
        "audio_spectrogram_transformer",
        "AST",
        "ForAudioClassification",
        lambda rows: {"input_values": torch.randn(rows, 16, 8), "labels": torch.randint(0, 3, (rows,))},
        ("audio_spectrogram_transformer.layers.*",),
        {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "patch_size": 4,
            "frequency_stride": 4,
            "time_stride": 4,
            "max_length": 16,
            "num_mel_bins": 8,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "num_labels": 3,
        },
        family="audio",
    ),
    hugging_face(
        "wavlm",
        "WavLM",
        "ForSequenceClassification",
        _waves,
        ("wavlm.encoder.layers.*",),
        _CLASSES,
        family="audio",
        prepare=_freeze_feature_encoder,
    ),
)
