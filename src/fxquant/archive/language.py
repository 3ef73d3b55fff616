"""The words of the language that saved graphs are written in: the functions, methods and attributes they may name.

The op table comes first; the rest is a reviewed list. A word stands for the function of torch and of nn.functional, the
tensor method, the ATen op, and their in-place twins. All of them compute on tensors and plain values and on nothing
else: none opens a file, starts a process, takes a callable, sets a seed or a mode, moves to a device, shows memory or a
Python object, or trusts its arguments about memory that it reads. To add one, see that this holds for every overload.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.node import _get_qualified_name

from fxquant.ops.table import OPS

ACTIVATIONS = (  # functions that are the value of a setting
    *(F.relu, F.gelu, F.silu, F.elu, F.celu, F.selu, F.mish, F.leaky_relu, F.relu6, F.hardtanh, F.hardswish),
    *(F.hardsigmoid, F.softplus, F.logsigmoid, F.softsign, F.tanh, F.sigmoid),
    *(torch.relu, torch.tanh, torch.sigmoid, torch.selu, torch.celu),
)
ATTRIBUTES = frozenset(
    (
        *("shape", "ndim", "dtype", "device", "layout", "T", "mT", "H", "mH", "real", "imag", "is_cuda"),
        *("is_quantized", "is_sparse", "is_leaf", "requires_grad", "data", "itemsize", "nbytes"),
    )
)
_ELEMENTWISE = """
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin
    asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min clip
    complex conj conj_physical copysign cos cosh deg2rad digamma div divide elu eq erf erfc erfinv exp exp2 expm1
    fix float_power floor floor_divide fmax fmin fmod frac ge gelu glu greater greater_equal gt hardshrink
    hardsigmoid hardswish hardtanh heaviside hypot i0 isclose isfinite isinf isnan isneginf isposinf isreal ldexp le
    leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_sigmoid log_softmax logaddexp logaddexp2
    logical_and logical_not logical_or logical_xor logit logsigmoid lt masked_fill maximum minimum mish mul multiply
    nan_to_num ne neg negative not_equal polar positive pow prelu rad2deg real reciprocal relu relu6 remainder round
    rrelu rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softmax softmin softplus softshrink softsign
    sqrt square sub subtract tan tanh tanhshrink threshold true_divide trunc where xlogy fill zero copy imag
    view_as_real view_as_complex resolve_conj resolve_neg bitwise_left_shift bitwise_right_shift __and__ __or__
    __xor__ __lshift__ __rshift__ _softmax _log_softmax special_digamma special_entr special_erf special_erfc
    special_erfinv special_exp2 special_expit special_expm1 special_log1p special_log_softmax special_logit
    special_logsumexp special_ndtr special_psi special_round special_sinc special_softmax special_xlogy special_i0
"""
_REDUCTIONS = """
    all allclose amax amin aminmax any argmax argmin argsort count_nonzero cummax cummin cumprod cumsum diff dist
    equal kthvalue logcumsumexp logsumexp max mean median min mode msort nanmean nanmedian nanquantile nansum norm
    frobenius_norm prod quantile renorm sort std std_mean sum sum_to_size topk trace trapezoid trapz var var_mean
    linalg_norm linalg_vector_norm linalg_matrix_norm cosine_similarity pairwise_distance normalize cov corrcoef histc
"""
_PRODUCTS = """
    addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul cross dot einsum ger inner kron linear matmul mm mv
    outer tensordot vdot conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
    conv_tbc cdist scaled_dot_product_attention multi_head_attention_forward lstm gru rnn_tanh rnn_relu lstm_cell
    gru_cell rnn_tanh_cell rnn_relu_cell linalg_cholesky linalg_cross linalg_det linalg_inv linalg_matmul
    linalg_matrix_power linalg_multi_dot linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_svd linalg_vecdot
    linalg_eigh inverse det logdet slogdet matrix_exp linalg_matrix_exp stft istft fft_fft fft_ifft fft_rfft
    fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_fftshift
    fft_ifftshift fft_hfft fft_ihfft
"""
_MOVES = """
    adjoint alias alias_copy argwhere atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to cat
    channel_shuffle chunk clone column_stack concat concatenate constant_pad_nd contiguous detach detach_copy diag
    diag_embed diagflat diagonal dsplit dstack expand expand_as expand_copy flatten flip fliplr flipud gather hsplit
    hstack index index_add index_copy index_fill index_put index_reduce index_select isin masked_scatter
    masked_select meshgrid moveaxis movedim narrow narrow_copy native_channel_shuffle nonzero one_hot pad permute
    permute_copy pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave reshape reshape_as roll rot90
    row_stack scatter scatter_add scatter_reduce searchsorted bucketize select select_copy select_scatter slice
    slice_copy slice_scatter split split_with_sizes squeeze squeeze_copy stack swapaxes swapdims t t_copy take
    take_along_dim tensor_split tile transpose transpose_copy tril triu unbind unbind_copy unflatten unfold fold
    unique unique_consecutive unsqueeze unsqueeze_copy unravel_index view view_as view_copy vsplit vstack numpy_T
    matrix_H mT mH _unsafe_view diagonal_copy diagonal_scatter im2col col2im lift_fresh_copy
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    __getitem__ __setitem__ embedding
"""
_LAYERS = """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices
    adaptive_max_pool3d_with_indices _adaptive_avg_pool2d _adaptive_avg_pool3d affine_grid affine_grid_generator
    avg_pool1d avg_pool2d avg_pool3d batch_norm dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout
    feature_alpha_dropout native_dropout grid_sample grid_sampler grid_sampler_2d grid_sampler_3d group_norm
    instance_norm interpolate layer_norm local_response_norm lp_pool1d lp_pool2d lp_pool3d max_pool1d max_pool2d
    max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices max_unpool1d max_unpool2d
    max_unpool3d native_batch_norm native_group_norm native_layer_norm _native_batch_norm_legit_no_training rms_norm
    upsample upsample_nearest upsample_bilinear upsample_nearest1d upsample_nearest2d upsample_nearest3d
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    gumbel_softmax binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy
    cross_entropy_loss gaussian_nll_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss
    multi_margin_loss multilabel_soft_margin_loss nll_loss nll_loss_nd poisson_nll_loss smooth_l1_loss
    soft_margin_loss triplet_margin_loss
"""
_MADE = """
    arange eye full full_like linspace logspace new_full new_ones new_tensor new_zeros
    ones ones_like rand rand_like randint randint_like randn randn_like randperm scalar_tensor tensor tril_indices
    triu_indices zeros zeros_like bernoulli normal uniform exponential
"""
_READ = """
    bfloat16 bool byte char cpu double dim float half int is_complex is_contiguous is_floating_point is_same_size
    is_signed is_conj is_neg is_nonzero item long ndimension nelement numel element_size short size stride
    storage_offset sym_size sym_numel sym_stride sym_storage_offset tolist to _to_copy type_as get_device dense_dim
    cdouble cfloat _assert_async _assert_scalar _assert_tensor_metadata sym_constrain_range
    sym_constrain_range_for_size _local_scalar_dense sym_max sym_min sym_not sym_float sym_int sym_sum sym_ite
"""
WORDS = frozenset(
    word for text in (_ELEMENTWISE, _REDUCTIONS, _PRODUCTS, _MOVES, _LAYERS, _MADE, _READ) for word in text.split()
)
_GROWING = """
    broadcast_to constant_pad_nd diag diag_embed diagflat expand expand_as expand_copy fold unfold im2col col2im histc
    one_hot pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d repeat repeat_interleave tensor_split tile unravel_index
"""
_FILLING = """
    full_like scalar_tensor tensor new_tensor bernoulli uniform exponential randint_like addbmm addmm addmv addr
    baddbmm scaled_dot_product_attention dropout layer_norm rms_norm normalize
"""
BOUNDED = frozenset(  # what they make is no larger than their tensors, whatever numbers they are given
    word for text in (_ELEMENTWISE, _REDUCTIONS, _MOVES, _READ, _FILLING) for word in text.split()
).difference(_GROWING.split())
_OPERATORS = """
    abs add and_ eq floordiv ge getitem gt iadd iand ifloordiv imatmul imod imul index inv invert ior ipow isub
    itruediv ixor le lt matmul mod mul ne neg not_ or_ pos pow setitem sub truediv truth xor contains is_ is_not
"""
_MATH = "ceil floor trunc sqrt exp log log2 log10 log1p sin cos tan tanh atan atan2 pow fabs isfinite isnan isinf"
_BUILTINS: tuple[Any, ...] = (
    *(abs, bool, dict, float, getattr, int, len, list, max, min, round, sum, tuple, OrderedDict),
)
_OWN_OPS = ("quantized_decomposed", "fxquant")
_ARGUMENTS = ("Storage", "Stream", "QScheme", "classes")  # none of these is a plain value
_ON_SIZES = ("_assert_scalar", "sym_constrain_range", "sym_constrain_range_for_size")  # checks that torch.export writes
_OF_TENSORS = ("element_size", "size", "stride", "sym_size", "sym_stride")  # TorchScript's own that take a tensor alone
_DUNDER = ("add", "sub", "mul", "truediv", "matmul", "floordiv", "mod", "pow")


def function_name(function: Callable[..., object]) -> str:
    """Return the name under which a function is stored."""
    return _get_qualified_name(function).replace("_operator.", "operator.")


def is_word(name: str) -> bool:
    """Tell whether a name, or its out-of-place twin, is in the list."""
    return name in WORDS or (name.endswith("_") and not name.startswith("__") and name[:-1] in WORDS)


@functools.cache
def functions() -> dict[str, Callable[..., object]]:
    """Return the functions that a stored graph may call, by name; ATen ops aside."""
    found: dict[str, Callable[..., Any]] = {}
    named = [function for row in OPS.rows for function in row.functions]
    overridable = torch.overrides.get_overridable_functions()
    made = [getattr(torch, word) for word in _MADE.split() if hasattr(torch, word)]
    owners = (torch, F, torch.functional, torch.linalg, torch.fft, torch.special)
    for function in (*(f for owner in owners for f in overridable.get(owner, ())), *made):
        if is_word(str(getattr(function, "__name__", ""))):
            named.append(function)
    # given a list, torch.meshgrid and the like call builtins of the same name, and these are what is traced
    inner = [getattr(torch._VF, name, None) for name in torch.functional.__all__ if is_word(name)]
    named += [function for function in inner if function is not None]
    named += [getattr(operator, word) for word in _OPERATORS.split()]
    named += [getattr(math, word) for word in _MATH.split()]
    for function in (*named, *_BUILTINS, torch._assert):
        found.setdefault(function_name(function), function)
    return found


@functools.cache
def methods() -> frozenset[str]:
    """Return the tensor methods that a stored graph may call."""
    names = {name for word in WORDS for name in (word, f"{word}_") if hasattr(torch.Tensor, name)}
    names |= {method for row in OPS.rows for method in row.methods}
    names |= {f"__{form}{word}__" for word in _DUNDER for form in ("", "i", "r") if word != "matmul" or form != "i"}
    names |= {"__neg__", "__invert__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__abs__", "__len__"}
    return frozenset(names)


def aten_op(name: str) -> torch._ops.OpOverload | None:
    """Return the overload named `torch.ops.aten.add.Tensor`, if a stored graph may call it."""
    parts = name.split(".")
    if len(parts) not in (4, 5) or parts[:2] != ["torch", "ops"]:
        return None
    namespace, word, overload = parts[2], parts[3], parts[4] if len(parts) == 5 else "default"
    if namespace in _OWN_OPS:
        op = _overload(namespace, word, overload)
        return op if op is not None and op in _quantized_ops() else None
    known = namespace == "aten" and (is_word(word) or word in _table_words())
    op = _overload(namespace, word, overload) if known else None
    if op is None or any(argument.is_out for argument in op._schema.arguments):
        return None
    types = [str(argument.type) for argument in (*op._schema.arguments, *op._schema.returns)]
    if not any("Tensor" in text for text in types) and word not in _ON_SIZES:
        return None  # TorchScript's twins on numbers and lists, which trust them: a remainder by 0 ends the process
    if word not in (*_ON_SIZES, *_OF_TENSORS) and not torch._C._dispatch_has_kernel(op.name()):
        return None  # TorchScript's own on tensors, which take dtypes as numbers of any size: -1 ends the process
    return None if any(kind in text for text in types for kind in _ARGUMENTS) else op


def _overload(namespace: str, word: str, overload: str) -> torch._ops.OpOverload | None:
    packet = getattr(getattr(torch.ops, namespace), word, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket) or overload not in packet.overloads():
        return None
    found = getattr(packet, overload)
    return found if isinstance(found, torch._ops.OpOverload) else None


@functools.cache
def _table_words() -> frozenset[str]:
    return frozenset(word for row in OPS.rows for word in row.aten)


@functools.cache
def _quantized_ops() -> frozenset[object]:
    from fxquant.graph import torch_compat

    choose = (torch_compat.CHOOSE_QPARAMS, torch_compat.CHOOSE_QPARAMS_SYMMETRIC)
    return frozenset((*torch_compat.QUANTIZE_OPS, *torch_compat.DEQUANTIZE_OPS, torch_compat.UNPACK, *choose))
