import numpy as np
import torch

from acclimate.data.streams import Domain, continual


def domain(name: str, count: int, first: int) -> Domain:
    labels = np.arange(first, first + count)
    images = np.broadcast_to(labels[:, None, None, None], (count, 2, 3, 3)).astype(np.uint8)
    return Domain(name, np.ascontiguousarray(images), labels)


def test_domains_come_one_after_the_other_and_are_not_mixed() -> None:
    batches = list(continual([domain("fog", 5, 0), domain("snow", 3, 5)], batch_size=2))
    assert [batch.domain for batch in batches] == ["fog", "fog", "fog", "snow", "snow"]
    assert [len(batch.y_N) for batch in batches] == [2, 2, 1, 2, 1]
    assert torch.cat([batch.y_N for batch in batches]).tolist() == list(range(8))


def test_images_are_channels_first_floats_and_stay_with_their_label() -> None:
    for batch in continual([domain("fog", 5, 100)], batch_size=2):
        assert batch.x_NCHW.dtype == torch.float32
        assert batch.x_NCHW.shape[1:] == (3, 2, 3)
        assert torch.equal(batch.x_NCHW[:, 2, 1, 0] * 255, batch.y_N.float())


def test_pixels_are_spread_from_0_to_1_in_the_right_places() -> None:
    images = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3) * 7
    (batch,) = continual([Domain("fog", images, np.zeros(2, np.int64))], batch_size=2)
    for n, row, column, channel in ((0, 0, 0, 0), (1, 1, 2, 1), (1, 0, 1, 2)):
        pixel = images[n, row, column, channel]
        assert batch.x_NCHW[n, channel, row, column].item() == np.float32(pixel) / np.float32(255)


def test_domains_are_only_made_when_their_turn_comes() -> None:
    made = []

    def domains():
        for name in ("fog", "snow"):
            made.append(name)
            yield domain(name, 2, 0)

    stream = continual(domains(), batch_size=2)
    next(stream)
    assert made == ["fog"]
