"""Convolutional nets as torchvision and others write them, small."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, as in ResNet-18."""

    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = (
            nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride != 1 or channels != out
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += identity
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    """ResNet-18 in its layout, with one block per stage."""

    def __init__(self, widths: tuple[int, ...] = (8, 12, 16), classes: int = 3):
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.layers = nn.Sequential(*[ResidualBlock(a, b, 1 if a == b else 2) for a, b in pairs])
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layers(x))
        y: Tensor = self.fc(torch.flatten(x, 1))
        return y


class SqueezeExcitation(nn.Module):
    """Scales channels by what a small MLP makes of their means."""

    def __init__(self, channels: int, squeeze: int):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeeze, 1)
        self.fc2 = nn.Conv2d(squeeze, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * torch.sigmoid(self.fc2(F.silu(self.fc1(self.avgpool(x)), inplace=True)))
        return y


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project: the block of MobileNetV2 and, with squeeze and excitation, EfficientNet."""

    def __init__(self, channels: int, out: int, stride: int, activation: type[nn.Module], excite: bool):
        super().__init__()
        hidden = 2 * channels
        self.expand = nn.Sequential(nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), activation())
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), activation()
        )
        self.excite = SqueezeExcitation(hidden, 4) if excite else nn.Identity()
        self.project = nn.Sequential(nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out))
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.excite(self.depthwise(self.expand(x))))
        return x + y if self.residual else y


class MobileNet(nn.Module):
    """A stem, inverted residuals and a classifier."""

    def __init__(self, activation: type[nn.Module], excite: bool, classes: int = 3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), activation())
        shapes = ((8, 8, 1), (8, 12, 2), (12, 12, 1))
        self.features = nn.Sequential(*[InvertedResidual(*shape, activation, excite) for shape in shapes])
        self.classifier = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(self.stem(x))
        y: Tensor = self.classifier(x.mean([2, 3]))
        return y


class DoubleConvolution(nn.Sequential):
    """Two convolutions with group norm."""

    def __init__(self, channels: int, out: int):
        super().__init__(
            nn.Conv2d(channels, out, 3, padding=1),
            nn.GroupNorm(2, out),
            nn.SiLU(),
            nn.Conv2d(out, out, 3, padding=1),
            nn.GroupNorm(2, out),
            nn.SiLU(),
        )


class UNet(nn.Module):
    """Down by pooling, up by a transposed convolution and by interpolation, with skips; sizes need not halve."""

    def __init__(self, classes: int = 3):
        super().__init__()
        self.down1, self.down2 = DoubleConvolution(3, 4), DoubleConvolution(4, 8)
        self.middle = DoubleConvolution(8, 12)
        self.up2 = nn.ConvTranspose2d(12, 8, 2, 2)
        self.merge2 = DoubleConvolution(16, 8)
        self.narrow = nn.Conv2d(8, 4, 1)
        self.merge1 = DoubleConvolution(8, 4)
        self.head = nn.Conv2d(4, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.up2(self.middle(F.avg_pool2d(second, 2)))
        missing = second.shape[-1] - x.shape[-1]
        x = self.merge2(torch.cat([second, F.pad(x, (0, missing, 0, missing), mode="reflect")], 1))
        x = F.interpolate(self.narrow(x), size=first.shape[-2:], mode="bilinear", align_corners=False)
        y: Tensor = self.head(self.merge1(torch.cat([first, x], 1)))
        return y


class Generator(nn.Sequential):
    """DCGAN's generator: transposed convolutions and batch norm from noise to an image."""

    def __init__(self, noise: int = 6):
        super().__init__(
            nn.ConvTranspose2d(noise, 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.ConvTranspose2d(8, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )


class Discriminator(nn.Sequential):
    """DCGAN's discriminator: strided convolutions with spectral norm and leaky ReLU."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, 1, 1)),
            nn.InstanceNorm2d(8, affine=True),
            nn.PReLU(8),
            nn.Conv2d(8, 1, 4, 1, 0, bias=False),
        )


class AdversarialPair(nn.Module):
    """A generator and a discriminator, trained by one loss each on the same step."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()


def train_image(model: nn.Module, pixel_values: Tensor, labels: Tensor) -> Tensor:
    """Classify images, or their pixels."""
    return F.cross_entropy(model(pixel_values), labels, label_smoothing=0.1)


def train_adversarial(model: AdversarialPair, images: Tensor, noise: Tensor) -> Tensor:
    """Train the discriminator on real and detached fake images and the generator against the discriminator."""
    fake = model.generator(noise)
    real_score, fake_score = model.discriminator(images), model.discriminator(fake.detach())
    loss = F.binary_cross_entropy_with_logits(real_score, torch.ones_like(real_score))
    loss = loss + F.binary_cross_entropy_with_logits(fake_score, torch.zeros_like(fake_score))
    return loss + F.softplus(-model.discriminator(fake)).mean()
