"""Blur and find edges in a colour image of shape (height, width, channels).

The image stays as it is: ``layout="NHWC"`` says that the channels come last, and an array without a
batch axis gives a result without one. Run it with ``python examples/filter_image.py``.
"""

import numpy as np

import cyconv


def picture(height: int = 240, width: int = 320) -> np.ndarray:
    """Draw a red disc on a blue gradient, as float32 between 0 and 1."""
    y, x = np.mgrid[:height, :width]
    image = np.zeros((height, width, 3), np.float32)
    image[..., 2] = x / width
    image[(y - height / 2) ** 2 + (x - width / 2) ** 2 < (height / 4) ** 2] = 1.0, 0.0, 0.0
    return image


def blur(image: np.ndarray, radius: int = 4) -> np.ndarray:
    """Blur each channel by itself: as many groups as channels, first along rows, then columns."""
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / (radius / 2)) ** 2)
    weights = (weights / weights.sum()).astype(image.dtype)
    channels = image.shape[-1]
    along_rows = np.broadcast_to(weights[None, None, :, None], (channels, 1, weights.size, 1))
    along_columns = np.moveaxis(along_rows, 2, 1)  # a view: any strides will do
    for kernel in (along_rows, along_columns):
        image = cyconv.conv2d(image, kernel, padding="same", groups=channels, layout="NHWC")
    return image


def edges(image: np.ndarray) -> np.ndarray:
    """Return the length of the gradient of the brightness, by Sobel's two filters."""
    across = np.outer([1, 2, 1], [-1, 0, 1])
    brightness = np.array([0.299, 0.587, 0.114], image.dtype)
    pair = np.stack([across, across.T])[..., None] * brightness  # (2 outputs, 3, 3, 3 channels)
    gradient = cyconv.conv2d(image, pair.astype(image.dtype), padding="same", layout="NHWC")
    return np.hypot(gradient[..., 0], gradient[..., 1])


def main() -> None:
    """Filter the picture and say what came out."""
    image = picture()
    blurred = blur(image)
    before, after = edges(image), edges(blurred)
    inside = (slice(8, -8), slice(8, -8))  # the border looks into the padding
    print(f"image {image.shape}, blurred {blurred.shape}, edges {before.shape}")
    print(f"steepest edge: {before[inside].max():.3f}, after the blur {after[inside].max():.3f}")


if __name__ == "__main__":
    main()
