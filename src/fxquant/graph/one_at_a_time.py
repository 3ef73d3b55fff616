"""A lock that captures hold: torch.fx and torch.export put functions of their own on `nn.Module` while they trace.

Two traces that overlap in threads would each take the other's for torch's, and put it back for good.
"""

from __future__ import annotations

import threading

CAPTURING = threading.RLock()  # a capture may ask for another, of a part
