"""Models of images and text of Hugging Face transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .architecture import LENGTH, VOCABULARY, hugging_face, masked_batch, tokens

_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "projection_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_IMAGE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
    "projection_dim": 8,
}
_IMAGE_TOKEN = 31
_PATCHES = 4


def _pairs(rows: int) -> dict[str, Tensor]:
    """Return texts and an image each."""
    batch = masked_batch(rows)
    del batch["labels"]
    return {**batch, "pixel_values": torch.randn(rows, 3, 16, 16)}


def _contrastive(model: nn.Module, **batch: Tensor) -> Tensor:
    loss: Tensor = model(**batch, return_loss=True).loss
    return loss


def _with_image_tokens(rows: int) -> dict[str, Tensor]:
    """Return texts in which an image takes the first places."""
    ids = torch.randint(3, _IMAGE_TOKEN, (rows, _PATCHES + LENGTH))
    ids[:, :_PATCHES] = _IMAGE_TOKEN
    mask, labels = torch.ones_like(ids), ids.roll(-1, 1)
    return {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(rows, 3, 16, 16), "labels": labels}


def _answers(rows: int) -> dict[str, Tensor]:
    """Return texts, their padding, an image and a class each."""
    return {**_pairs(rows), "labels": torch.nn.functional.one_hot(torch.randint(0, 3, (rows,)), 3).float()}


ARCHITECTURES = (
    hugging_face(
        "clip",
        "CLIP",
        "Model",
        _pairs,
        ("text_model.encoder.layers.*", "vision_model.encoder.layers.*"),
        {"text_config": _TEXT, "vision_config": _IMAGE, "projection_dim": 8},
        family="multimodal",
        train=_contrastive,
    ),
    hugging_face(
        "siglip",
        "Siglip",
        "Model",
        _pairs,
        ("text_model.encoder.layers.*", "vision_model.encoder.layers.*"),
        {"text_config": {**_TEXT, "projection_size": 16, "max_position_embeddings": LENGTH}, "vision_config": _IMAGE},
        family="multimodal",
        train=_contrastive,
    ),
    hugging_face(
        "blip",
        "Blip",
        "ForConditionalGeneration",
        lambda rows: {**_pairs(rows), "labels": tokens(rows)},
        ("text_decoder.bert.encoder.layer.*", "vision_model.encoder.layers.*"),
        {
            "text_config": {
                **_TEXT,
                "encoder_hidden_size": 16,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
                "use_cache": False,
            },
            "vision_config": _IMAGE,
            "projection_dim": 8,
        },
        family="multimodal",
    ),
    hugging_face(
        "llava",
        "Llava",
        "ForConditionalGeneration",
        _with_image_tokens,
        ("model.language_model.layers.*", "model.vision_tower.encoder.layers.*"),
        {
            "vision_config": {**_IMAGE, "num_hidden_layers": 2, "model_type": "clip_vision_model"},
            "text_config": {**_TEXT, "num_key_value_heads": 2, "use_cache": False, "model_type": "llama"},
            "image_token_index": _IMAGE_TOKEN,
            "image_seq_length": _PATCHES,
        },
        family="multimodal",
    ),
    hugging_face(
        "vilt",
        "Vilt",
        "ForQuestionAnswering",
        _answers,
        ("vilt.encoder.layer.*",),
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 16,
            "image_size": 16,
            "patch_size": 8,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "num_labels": 3,
        },
        family="multimodal",
        refused="cannot capture: data-dependent branching: a branch on a number or a size",
        note="the number of image patches depends on the values of the pixel mask",
    ),
)
