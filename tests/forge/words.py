"""Crafted files: words of a graph and of its modules that reach further than an op."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from forge.files import EMPTY, Change, File, X, hide_tensor, identity

BIG = (10**6, 10**9, 10**12, 2**31, 2**62)

_FUNCTIONS = """
    os.system os.popen os.execv os.remove subprocess.run subprocess.Popen builtins.eval builtins.exec builtins.open
    builtins.compile builtins.__import__ builtins.breakpoint builtins.input eval exec open compile __import__ print
    vars setattr delattr globals locals type object super hasattr callable map filter iter next sorted range zip
    operator.methodcaller operator.attrgetter operator.itemgetter operator.call operator.lshift operator.rshift
    operator.length_hint functools.partial functools.reduce importlib.import_module pickle.loads pickle.load
    marshal.loads shutil.rmtree socket.socket ctypes.CDLL sys.exit sys.setrecursionlimit threading.Thread time.sleep
    signal.alarm torch.load torch.save torch.hub.load torch.compile torch.manual_seed torch.seed
    torch.set_grad_enabled torch.set_default_dtype torch.set_num_threads torch.set_default_device
    torch.set_rng_state torch.from_file torch.classes.load_library torch.ops.load_library torch.jit.load
    torch.utils.cpp_extension.load torch.vmap torch.as_strided torch.from_numpy torch.frombuffer
    torch.set_printoptions torch.use_deterministic_algorithms torch.autograd.set_grad_enabled
    torch._C._set_grad_enabled torch.nn.functional.embedding_bag torch.ctc_loss torch.sparse_coo_tensor
    torch.sparse.mm torch.resize_as_ torch.empty_strided torch.Tensor.data_ptr torch.bincount
    torch.quantize_per_tensor torch.fbgemm_pack_gemm_matrix_fp16 torch.lobpcg torch.autocast_increment_nesting
    torch._foreach_add math.factorial math.comb math.perm fxquant.load fxquant.save
    fxquant.archive.archive.read_archive fxquant.graph.encode.resolve_function
"""
_ATEN = """
    manual_seed set_grad_enabled save from_file _sparse_coo_tensor_unsafe _sparse_csr_tensor_unsafe as_strided
    _sparse_compressed_tensor_unsafe _sparse_csc_tensor_unsafe _sparse_bsr_tensor_unsafe set_ resize_ resize_as_
    _resize_output_ record_stream _unsafe_index _unsafe_index_put embedding_bag _embedding_bag _ctc_loss seed
    initial_seed set_rng_state get_rng_state _cuda_getCurrentRawStream pin_memory _pin_memory to_sparse _coalesced_
    sparse_resize_ _nested_view_from_buffer empty_strided empty_quantized quantize_per_tensor int_repr
    _make_per_tensor_quantized_tensor bincount retain_grad requires_grad_ _backward data _version is_pinned
    storage_type _foobar __class__ __dict__ _weight_int4pack_mm _weight_int8pack_mm mkldnn_convolution mkldnn_linear
    _mkldnn_reshape mkldnn_rnn_layer segment_reduce _fused_adam unsafe_chunk unsafe_split histogramdd
    _histogramdd_bin_edges _segment_reduce_backward
"""
_METHODS = """
    __reduce_ex__ __reduce__ __class__ __init__ __getattribute__ __setattr__ __dict__ __deepcopy__ __array__ numpy
    apply_ map_ map2_ register_hook data_ptr storage untyped_storage set_ resize_ resize_as_ share_memory_
    requires_grad_ backward retain_grad cuda xpu pin_memory to_sparse as_strided as_strided_ type record_stream
    module_load __setstate__ is_shared _make_subclass _backward_hooks __del__ __torch_function__ bincount
    sparse_mask to_mkldnn
"""
_ATTRIBUTES = (
    "__class__ __dict__ __reduce_ex__ __globals__ grad grad_fn _base __init__ data_ptr storage __module__ names"
)


def of_words() -> Iterator[tuple[str, str, Change]]:
    """(name, base file, change)."""
    yield from _calls()
    yield from _settings()


def _calls() -> Iterator[tuple[str, str, Change]]:
    def call(op: str, target: str, args: Any, kwargs: Any = EMPTY) -> Change:
        return lambda file: file.insert(op, target, args, kwargs)

    for word in _FUNCTIONS.split():
        yield f"function {word}", "conv", call("call_function", word, ["tuple", X])
    for word in _ATEN.split():
        yield f"aten {word}", "conv", call("call_function", f"torch.ops.aten.{word}.default", ["tuple", X])
    for word in _METHODS.split():
        yield f"method {word}", "conv", call("call_method", word, ["tuple", X])
    for word in _ATTRIBUTES.split():
        yield f"attribute {word}", "conv", call("call_function", "getattr", ["tuple", X, word])
    for number, args in enumerate((["tuple", X], ["tuple", X, X], ["tuple", X, "shape", X], ["tuple", X, 1])):
        yield f"getattr {number}", "conv", call("call_function", "getattr", args)
    for builtin in ("max", "min", "list", "sum", "int", "round"):
        key = ["dict", ["key", ["function", "torch.relu"]]]
        yield f"key of {builtin}", "conv", call("call_function", builtin, ["tuple", ["list", X, X]], key)
        yield f"key node of {builtin}", "conv", call("call_function", builtin, ["tuple", X], ["dict", ["key", X]])
    for word in ("out", "generator", "pin_memory", "device", "names", "layout"):
        for value in ("cuda", X, True, ["torch", "sparse_coo"], ["device", "cuda:0"], ["device", "meta"]):
            kwargs = ["dict", [word, value]]
            yield f"keyword {word} {value}", "conv", call("call_function", "torch.zeros_like", ["tuple", X], kwargs)
    for place in ("cuda", "meta", "cuda:99", "x" * 50, "mps", "xla"):
        yield f"to {place}", "conv", call("call_method", "to", ["tuple", X, place])
    for word in ("x=print('run')", "a b", "import os", "lambda", "1x", "x)", "x\n", "*", "é-", "class", "self.x"):
        yield f"placeholder {word!r}", "conv", call("placeholder", word, ["tuple"])
        yield f"module {word!r}", "conv", call("call_module", word, ["tuple", X])
        yield f"read {word!r}", "conv", call("get_attr", word, ["tuple"])
        yield f"keyword name {word!r}", "conv", call("call_function", "torch.relu", ["tuple", X], ["dict", [word, 1]])
        yield f"opcode {word!r}", "conv", call(word, "torch.relu", ["tuple", X])
    for word in ("to_folder", "recompile", "graph", "forward", "print_readable", "train", "code", "_self", "__call__"):
        yield f"hidden module {word}", "conv", partial(_hidden, word=word)
        yield f"hidden tensor {word}", "conv", partial(hide_tensor, word=word)


def _hidden(file: File, word: str) -> None:
    file.header["modules"][word] = identity()
    file.insert("call_module", word, ["tuple", "/tmp/forged_folder"])


def _settings() -> Iterator[tuple[str, str, Change]]:
    def stock(cls: str, *settings: Any) -> Change:
        return lambda file: _stock(file, "evil", cls, ["dict", *settings])

    for key in (
        "forward",
        "__class__",
        "_call_impl",
        "__call__",
        "_forward_hooks",
        "_modules",
        "training",
        "extra_repr",
    ):
        for value in (["function", "getattr"], ["function", "torch.relu"], 1, "x", ["dict"], X):
            yield f"setting {key} {value}", "conv", stock("torch.nn.modules.linear.Identity", [key, value])
    for value in (["function", "getattr"], ["function", "builtins.eval"], ["function", "torch.load"], "eval", 1, None):
        yield (
            f"activation {value}",
            "conv",
            stock("torch.nn.modules.transformer.TransformerEncoderLayer", ["activation", value]),
        )
    pools = ("pooling.MaxPool2d", "pooling.AvgPool2d", "fold.Unfold", "pooling.LPPool2d")
    for cls in pools:
        for key in ("kernel_size", "stride", "dilation", "padding"):
            for value in (0, -1, 2**40, 1.5, "x", None, ["tuple", 0, 0], ["list", X]):
                full = [["kernel_size", 2], ["stride", 2], ["padding", 0], ["dilation", 1], ["ceil_mode", False]]
                full += [["return_indices", False], ["count_include_pad", True], ["norm_type", 2.0]]
                given = [pair for pair in full if pair[0] != key] + [[key, value]]
                yield f"{cls} {key} {value}", "conv", stock(f"torch.nn.modules.{cls}", *given)
    for cls in ("parallel.data_parallel.DataParallel", "modules.rnn.LSTM", "modules.conv.LazyConv2d", "Parameter", "x"):
        yield f"class {cls}", "conv", stock(f"torch.nn.{cls}")
    for factor in BIG:
        yield (
            f"pixel shuffle {factor}",
            "conv",
            stock("torch.nn.modules.pixelshuffle.PixelShuffle", ["upscale_factor", factor]),
        )
        settings = [["size", None], ["scale_factor", float(factor)], ["mode", "nearest"], ["align_corners", None]]
        settings += [["recompute_scale_factor", None], ["name", "Upsample"]]
        yield f"upsample {factor}", "conv", stock("torch.nn.modules.upsampling.Upsample", *settings)


def _stock(file: File, name: str, cls: str, settings: list[Any], **more: Any) -> None:
    row = {"kind": "stock", "class": cls, "settings": settings, "absent": [], **more}
    file.header["modules"][name] = row
    file.insert("call_module", name, ["tuple", X])
