"""Stock torch.nn modules in a form that quantizes: the same numbers in float, built of linears that become int8.

`LSTM`, `GRU` and `RNN` run their time loop as Python around int8 linears; `MultiheadAttention` and the transformer
layers trace through. `prepare_fx` puts them in place of the stock ones where a rule asks for quantization.
"""

from fxquant.modules.attention import MultiheadAttention
from fxquant.modules.cells import GRUCell, LSTMCell, RNNCell
from fxquant.modules.recurrent import GRU, LSTM, RNN
from fxquant.modules.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "GRUCell",
    "LSTMCell",
    "MultiheadAttention",
    "RNNCell",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]
