"""Choose the engine that runs a model. Only the chosen one's libraries are loaded."""

from __future__ import annotations

import os

from dualpath.model.api import Backend
from dualpath.model.spec import ModelSpec
from dualpath.settings import Settings


def load_backend(spec: ModelSpec, settings: Settings, engine: int = 0) -> Backend:
    """Load the model of `spec` on this process's device; blocks while weights are read.

    `engine` counts within the node: on a machine with several accelerators each engine gets its own.
    Raises ModelError where the device or the weights are not usable. The caller closes the back end.
    """
    if spec.kind == "synthetic":
        from dualpath.model.synthetic import SyntheticBackend

        return SyntheticBackend(spec, settings)
    # Read when torch is loaded. Threads that spin while they wait take the cores that the node's event loop and
    # other nodes' engines need: two nodes on two cores then decode fifty times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from dualpath.model.torch_backend import TorchBackend

    return TorchBackend(spec, settings, engine)
