"""Crafted files, by name: what an attacker would try. Each is a base file and a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from forge.files import File
from forge.growth import growing
from forge.kinds import of_kinds
from forge.trust import trusting

Change = Callable[[File], None]
X, FIRST = ["node", "input_1"], "input_1"
EMPTY = ["dict"]
QUANTIZE = "quantize_per_tensor"
PACK = "fxquant.capture.guards.pack"
IN_PLACE = "fxquant.capture.guards.apply_in_place"
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


def _stock(file: File, name: str, cls: str, settings: list[Any], **more: Any) -> None:
    row = {"kind": "stock", "class": cls, "settings": settings, "absent": [], **more}
    file.header["modules"][name] = row
    file.insert("call_module", name, ["tuple", X])


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
        yield f"hidden tensor {word}", "conv", partial(_hidden_tensor, word=word)


def _hidden(file: File, word: str) -> None:
    file.header["modules"][word] = _identity()
    file.insert("call_module", word, ["tuple", "/tmp/forged_folder"])


def _hidden_tensor(file: File, word: str) -> None:
    file.tensors[word] = torch.ones(2)
    file.insert("get_attr", word, ["tuple"])


def _identity() -> dict[str, Any]:
    return {"kind": "stock", "class": "torch.nn.modules.linear.Identity", "settings": EMPTY, "absent": []}


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


def _numbers() -> Iterator[tuple[str, str, Change]]:
    def call(op: str, target: str, *args: Any) -> Change:
        return lambda file: file.insert(op, target, ["tuple", *args])

    for size in BIG:
        for made in ("zeros", "ones", "rand", "empty", "arange", "randperm", "eye"):
            yield f"{made} {size}", "conv", call("call_function", f"torch.{made}", size)
        yield f"repeat {size}", "conv", call("call_method", "repeat", X, size, 1, 1, 1)
        yield f"expand {size}", "conv", call("call_method", "expand", X, size, 2, 3, 8, 8)
        yield f"pad {size}", "conv", call("call_function", "torch.nn.functional.pad", X, ["list", 0, size])
        yield f"interpolate {size}", "conv", call("call_function", "torch.nn.functional.interpolate", X, size)
        yield f"tensor_split {size}", "conv", call("call_function", "torch.tensor_split", X, size)
        yield f"histc {size}", "conv", call("call_function", "torch.histc", X, size)
        yield f"list times {size}", "conv", call("call_function", "operator.mul", ["list", 1], size)
        yield f"aten full {size}", "conv", call("call_function", "torch.ops.aten.full.default", ["list", size, size], 1)
        yield f"power {size}", "conv", call("call_function", "operator.pow", 9, size)
    yield "squares", "conv", _squares
    yield "deep value", "conv", lambda file: file.insert("call_function", "torch.relu", _nested(300))
    yield "one_hot by data", "tokens", lambda file: _after(file, "torch.nn.functional.one_hot")
    yield "repeat_interleave by data", "tokens", lambda file: _after(file, "torch.repeat_interleave", twice=True)
    for scale in (0.0, -1.0, ["float", "nan"], ["float", "inf"], 1e-320, "x", None, 10**30, X, 1):
        yield f"scale {scale}", "conv", partial(_argument, text=QUANTIZE, at=1, value=scale)
    for zero in (-129, 128, 300, 10**10, 0.5, "x", None, ["float", "nan"]):
        yield f"zero point {zero}", "conv", partial(_argument, text=QUANTIZE, at=2, value=zero)
    for at, value in (
        (3, 10**9),
        (4, -(10**9)),
        (3, "x"),
        (5, ["torch", "float32"]),
        (5, ["torch", "qint8"]),
        (5, "int8"),
    ):
        yield (
            f"grid {at} {value}",
            "conv",
            partial(_argument, text=QUANTIZE, at=at, value=value),
        )  # type: ignore[misc]
    for at, name in ((3, "stride"), (4, "padding"), (5, "dilation"), (6, "groups")):
        for value in (0, -1, 2**40, ["tuple", 0, 0], ["tuple", -3, 1], 1.5, "x", None, ["tuple", *[1] * 70], 7):
            yield f"{name} {value}", "conv", partial(_argument, text="conv2d", at=at, value=value)
    for text in ("9**9**9 > 0", "s[0][0] == __import__('os')", "1 and " * 2000 + "1", "(" * 900, "-" * 3000 + "1"):
        yield f"condition {text[:20]}", "sizes", partial(_condition, condition=text)
    trees: tuple[Any, ...] = (
        *(["tuple", "eval", "1"], ["tuple", "**", 9, 9], ["tuple", "size", 0, -1], ["tuple", "==", 1, 2**70], 5, "x"),
        *(_nested(200), ["tuple", "size", 10**9, 0], ["tuple", "/", 1, 0], ["tuple", "%", 1, 0], ["tuple", "max"]),
    )
    for tree in trees:
        yield f"condition tree {str(tree)[:30]}", "sizes", partial(_condition, condition=tree)


def _squares(file: File) -> None:
    """1 for a batch of one, beyond all memory for two."""
    rows = [["call_method", "n0", "size", ["tuple", X, 0], EMPTY, EMPTY]]
    rows += [
        ["call_function", f"n{i + 1}", "operator.mul", ["tuple", ["node", f"n{i}"], ["node", f"n{i}"]], EMPTY, EMPTY]
        for i in range(80)
    ]
    file.graph[1:1] = rows
    file.give("n80")


def _nested(depth: int) -> Any:
    made: Any = ["tuple", 1]
    for _ in range(depth):
        made = ["tuple", made]
    return made


def _after(file: File, function: str, twice: bool = False) -> None:
    name = file.graph[0][1]
    node = ["node", name]
    row = ["call_function", "evil", function, ["tuple", node, *([node] * twice)], EMPTY, EMPTY]
    file.graph.insert(1, row)
    file.give("evil")


def _argument(file: File, text: str, at: int, value: Any) -> None:
    file.row(text)[3][at + 1] = value


def _condition(file: File, condition: Any) -> None:
    file.row("check_sizes")[3][3] = ["tuple", condition]


def _tensors() -> Iterator[tuple[str, str, Change]]:
    def put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
        return lambda file: file.tensors.update({name: change(file.tensors[name])})

    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "flat": lambda t: t.reshape(-1),
        "scalar": lambda t: t.reshape(-1)[0],
        "empty": lambda t: t[:0],
        "one row less": lambda t: t[:-1],
        "one row more": lambda t: torch.cat([t, t[:1]]),
        "more dims": lambda t: t[None],
        "float": lambda t: t.double(),
        "int64": lambda t: t.long(),
        "bool": lambda t: t != 0,
        "complex": lambda t: t.to(torch.complex64),
        "zeros": torch.zeros_like,
        "turned": lambda t: t.transpose(0, -1) if t.dim() else t,
        "int8 ends": lambda t: torch.full_like(t, 127),
        "negative": lambda t: -t.abs() - 1,
    }
    places = [("conv", "0.weight"), ("conv", "0.weight_scale"), ("conv", "0.bias"), ("conv", "6.weight")]
    places += [("linear", "0.weight"), ("linear", "0.weight_scale"), ("tokens", "embed.weight"), ("tokens", "q.bias")]
    for base, name in places:
        for change, function in changes.items():
            yield f"{base} {name} {change}", base, put(name, function)
    for value in (float("nan"), float("inf"), -1.0, 0.0):
        yield f"scale tensor {value}", "conv", put("0.weight_scale", partial(torch.full_like, fill_value=value))
    for name in ("__class__", "_parameters", "forward", "a..b", ".", "", "x" * 5000, "0.__dict__", "training"):
        yield f"tensor name {name[:20]!r}", "conv", partial(_hidden_tensor, word=name)


def _set(file: File, path: tuple[str, ...], key: str, value: Any) -> None:
    owner = file.header
    for step in path:
        owner = owner[step]
    owner[key] = value


def _drop(file: File, key: str) -> None:
    del file.header[key]


def _ring(file: File) -> None:
    for path in ("a", "b"):
        file.header["modules"][path] = _identity()
    file.header["aliases"].update({"a.x": "b", "b.y": "a"})
    file.insert("call_module", "a", ["tuple", X])


def _doubling(file: File) -> None:
    """2^60 paths to one module."""
    for step in range(60):
        file.header["modules"][f"m{step}"] = _identity()
    for step in range(59):
        file.header["aliases"].update({f"m{step}.x": f"m{step + 1}", f"m{step}.y": f"m{step + 1}"})


def _text(file: File, text: str) -> None:
    file.text = text


def _headers() -> Iterator[tuple[str, str, Change]]:
    tables = ("modules", "aliases", "trees", "ties", "parameters", "unsaved", "channels_last", "format")
    for name in tables:
        for value in (None, 1, "x", [], {}, [1], {"x": 1}, {"": None}, {"0": "0"}, ["x"]):
            yield (
                f"header {name} {value}",
                "conv",
                partial(_set, path=(), key=name, value=value),
            )  # type: ignore[misc]
        yield f"header without {name}", "conv", partial(_drop, key=name)
    texts = {
        "not json": "{",
        "nan": '{"format": NaN}',
        "list": "[]",
        "number": "1",
        "deep": "[" * 100_000 + "]" * 100_000,
        "deep dict": '{"a":' * 100_000 + "1" + "}" * 100_000,
        "long number": "1" * 10_000,
        "twice": '{"format": "fxquant-2", "format": "fxquant-2"}',
        "empty": "",
        "surrogate": '"\\ud800"',
        "null": "null",
    }
    for name, text in texts.items():
        yield f"text {name}", "conv", partial(_text, text=text)
    for field in ("kind", "class", "method", "num_inputs", "input_names", "flat", "order", "boundary", "graph", "code"):
        for value in (None, -1, "evil", ["x"], {"x": 1}, 10**18, True):
            yield (
                f"region {field} {value}",
                "conv",
                partial(_set, path=("modules", ""), key=field, value=value),
            )
    for field in ("op", "spec", "shell", "kind"):
        for value in (None, "evil", 1, ["x"], {"class": "x"}, ["value", "Spec", ["dict", ["bits", 4]]]):
            yield (
                f"weight {field} {value}",
                "conv",
                partial(_set, path=("modules", "0"), key=field, value=value),
            )
    for kind, fields in (
        ("Spec", [["bits", 99]]),
        ("QParams", [["scale", 0.0]]),
        ("Tree", []),
        ("Evil", []),
        ("TensorInfo", []),
    ):
        value = ["value", kind, ["dict", *fields]]
        yield f"value {kind}", "conv", partial(_set, path=("trees",), key="", value=value)
    yield "alias of itself", "conv", lambda file: file.header["aliases"].update({"0.a": "0"})
    yield "alias ring", "conv", lambda file: file.header["aliases"].update({"a": "b", "b": "a", "0.x": ""})
    yield "aliases inside each other", "conv", _ring
    yield "aliases of aliases", "conv", _doubling
    yield "deep path", "conv", lambda file: file.header["modules"].update({".".join(["a"] * 400): _identity()})
    yield "tie ring", "conv", lambda file: file.header["ties"].update({"a": "b", "b": "a"})
    yield (
        "weights property",
        "conv",
        lambda file: file.header["modules"][""].update(weights=["dict", ["forward", ["tuple"]]]),
    )
    yield "node twice", "conv", lambda file: file.graph.insert(1, file.graph[1])
    yield "node before", "conv", lambda file: file.graph.reverse()
    yield "two outputs", "conv", lambda file: file.graph.append(file.graph[-1])
    yield "no output", "conv", lambda file: file.graph.pop()
    yield "huge example", "conv", lambda file: file.graph[0].__setitem__(5, _info(10**6, 10**6))
    yield "many dims", "conv", lambda file: file.graph[0].__setitem__(5, _info(*[1] * 200))
    yield (
        "pack",
        "conv",
        lambda file: file.insert(
            *(
                "call_function",
                "fxquant.capture.guards.pack",
                ["tuple", ["list"], '[1, {"type": "collections.defaultdict"}]'],
            )
        ),
    )
    yield (
        "pack deep",
        "conv",
        lambda file: file.insert(*("call_function", "fxquant.capture.guards.pack", ["tuple", ["list"], "[" * 50_000])),
    )
    yield (
        "in place",
        "conv",
        lambda file: file.insert(
            *("call_function", "fxquant.capture.guards.apply_in_place", ["tuple", X, "__reduce_ex__", 4])
        ),
    )
    yield (
        "in place resize",
        "conv",
        lambda file: file.insert(
            *("call_function", "fxquant.capture.guards.apply_in_place", ["tuple", X, "resize_", 10**9])
        ),
    )
    yield "the module itself", "conv", lambda file: file.insert("get_attr", "_self", ["tuple"])


def _insert(file: File, target: str, args: Any) -> None:
    file.insert("call_function", target, args)


def _info(*shape: int) -> Any:
    fields = ["dict", ["dtype", ["torch", "float32"]], ["shape", ["tuple", *shape]]]
    return ["dict", ["tensor", ["value", "TensorInfo", fields]]]


def crafted() -> dict[str, tuple[str, Change]]:
    """Name -> (base file, change)."""
    found: dict[str, tuple[str, Change]] = {}
    for source in (_calls(), _settings(), _numbers(), _tensors(), _headers(), growing(), trusting(), of_kinds()):
        for name, base, change in source:
            found[f"{len(found)}: {name}"] = base, change
    return found
