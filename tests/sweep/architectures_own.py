"""Models written here, as training code outside of libraries writes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .architecture import VOCABULARY, Architecture, image_batch, language_batch, segmentation_batch
from .own_convolutional import AdversarialPair, MobileNet, ResNet, UNet, train_adversarial, train_image
from .own_other import (
    DiffusionTransformer,
    GraphNet,
    RecommendationModel,
    VariationalAutoencoder,
    train_autoencoder,
    train_clicks,
    train_diffusion,
    train_graph,
)
from .own_sequence import CellLM, EncoderDecoder, Llama, RecurrentLM, train_language


def _adversarial_batch(rows: int) -> dict[str, Tensor]:
    return {"images": torch.rand(rows, 3, 8, 8), "noise": torch.randn(rows, 6, 1, 1)}


def _graph_batch(rows: int) -> dict[str, Tensor]:
    return {
        "nodes": torch.randn(rows, 6, 5),
        "edges": torch.randint(0, 6, (rows, 9, 2)),
        "labels": torch.randint(0, 3, (rows,)),
    }


def _click_batch(rows: int) -> dict[str, Tensor]:
    return {
        "dense": torch.randn(rows, 4),
        "categories": torch.randint(0, 5, (rows, 3, 2)),
        "clicked": torch.randint(0, 2, (rows,)).float(),
    }


def _pixel_batch(rows: int) -> dict[str, Tensor]:
    return {"x": torch.rand(rows, 36), "noise": torch.randn(rows, 4)}


def _diffusion_batch(rows: int) -> dict[str, Tensor]:
    return {
        "image": torch.randn(rows, 3, 8, 8),
        "noise": torch.randn(rows, 3, 8, 8),
        "steps": torch.randint(0, 1000, (rows,)),
        "labels": torch.randint(0, 3, (rows,)),
    }


_CONVOLUTIONAL = "convolutional, written here"
_SEQUENCE = "sequence, written here"
_OTHER = "other, written here"

ARCHITECTURES = (
    Architecture("resnet18", _CONVOLUTIONAL, ResNet, image_batch(32), train_image, ("layers.*",)),
    Architecture(
        "mobilenet_v2",
        _CONVOLUTIONAL,
        lambda: MobileNet(nn.ReLU6, excite=False),
        image_batch(16),
        train_image,
        ("features.*",),
    ),
    Architecture(
        "efficientnet",
        _CONVOLUTIONAL,
        lambda: MobileNet(nn.SiLU, excite=True),
        image_batch(16),
        train_image,
        ("features.*",),
    ),
    Architecture("unet", _CONVOLUTIONAL, UNet, segmentation_batch(13), train_image, ("down*", "up*", "merge*")),
    Architecture(
        "dcgan",
        _CONVOLUTIONAL,
        AdversarialPair,
        _adversarial_batch,
        train_adversarial,
        ("generator", "discriminator"),
    ),
    Architecture(
        "torchtitan_llama",
        _SEQUENCE,
        lambda: Llama(VOCABULARY),
        language_batch,
        train_language,
        ("layers.*",),
        note="rotary positions are a complex buffer",
    ),
    Architecture(
        "lstm",
        _SEQUENCE,
        lambda: RecurrentLM(VOCABULARY, nn.LSTM),
        language_batch,
        train_language,
        ("rnn",),
    ),
    Architecture(
        "gru",
        _SEQUENCE,
        lambda: RecurrentLM(VOCABULARY, nn.GRU),
        language_batch,
        train_language,
        ("rnn",),
    ),
    Architecture("gru_cell", _SEQUENCE, lambda: CellLM(VOCABULARY), language_batch, train_language, ("cell",)),
    Architecture(
        "transformer",
        _SEQUENCE,
        lambda: EncoderDecoder(VOCABULARY),
        language_batch,
        train_language,
        ("transformer.encoder.layers.*", "transformer.decoder.layers.*"),
    ),
    Architecture("graph_net", _OTHER, GraphNet, _graph_batch, train_graph, ("layers.*",)),
    Architecture("dlrm", _OTHER, RecommendationModel, _click_batch, train_clicks, ("tables.*", "top")),
    Architecture(
        "autoencoder", _OTHER, VariationalAutoencoder, _pixel_batch, train_autoencoder, ("encoder", "decoder")
    ),
    Architecture("dit", _OTHER, DiffusionTransformer, _diffusion_batch, train_diffusion, ("blocks.*",)),
)
