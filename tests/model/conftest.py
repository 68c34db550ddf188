"""Small networks run fastest on one thread; a folder for exports."""

import pytest
import torch
from exporting import Room

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    return Room(tmp_path_factory.mktemp("export"))
