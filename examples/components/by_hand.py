"""A reader of data sets, `[dataloader] reader = by_hand`: this one reads dataset folders by hand."""

from dataclasses import dataclass

from seamseg.components import Reader, key, open_image, open_mask, parse_metadata, reader


@dataclass(frozen=True)
class ByHandKeys:
    """Keys of the section [reader by_hand]."""

    images: str = key("folder of the images", "img")
    masks: str = key("folder of the masks, PNG files of instance ids", "msk")


@reader("by_hand", keys=ByHandKeys)
class ByHand(Reader):
    """A split of a data set; `self.root` is the path of the command line."""

    def __init__(self, root, split, keys):
        super().__init__(root, split, keys)
        self.metadata = parse_metadata((self.root / "metadata.bin").read_bytes())  # the classes
        known = {image.id: image for image in self.metadata.images}
        listed = (self.root / "lst" / f"{split}.txt").read_text().split()
        self.images = [known[name] for name in listed]  # ImageInfo: id, cat (class by id), size, iscrowd
        self.files = {path.stem: path for path in (self.root / keys.images).iterdir()}

    def read_image(self, index, at_least=None):
        """Return an image, RGB."""
        return open_image(self.files[self.images[index].id])

    def read_masks(self, index):
        """Return instance ids L x H x W, 0 for void."""
        return open_mask(self.root / self.keys.masks / f"{self.images[index].id}.png")[None]
