"""Types of arguments."""

import os
import typing

Path = typing.Union[str, 'os.PathLike[str]']


class Dataset(typing.Protocol):
    """Numbered samples: torch.utils.data.Dataset, a list, sluice.ArrayDataset, ..."""

    def __len__(self) -> int:
        ...

    def __getitem__(self, index: int) -> typing.Any:
        ...
