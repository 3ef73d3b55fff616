"""Public names of torch.ao.quantization that are not provided, each with what to use instead."""

from __future__ import annotations

_EAGER = "eager mode asks for marks in the model; prepare_fx and convert_fx (or fxquant.quantize) take it as it is."
_JIT = "TorchScript models are not quantized; give the nn.Module to prepare_fx."
_TABLES = "ops and modules are one table here, fxquant.ops.table; a Target says what runs in int8."
_FUSE = "prepare_fx folds batch norms by itself; fuse_fx does it alone."
_TORCHAO = "describe the grid with fxquant.Spec: bits, symmetric, granularity, axis, group_size."
_DEBUG = "it records tensors and finds no range; hook modules of the float model, or use RecordingObserver alone."

_REASONS: dict[str, tuple[str, ...]] = {
    _EAGER: (
        *("add_quant_dequant", "convert", "default_eval_fn", "no_observer_set", "prepare", "prepare_qat"),
        *("propagate_qconfig_", "quantize", "quantize_qat", "swap_module"),
    ),
    "use fxquant.quantize(model, mode='dynamic', example_inputs=...).": ("quantize_dynamic",),
    _JIT: (
        *("convert_dynamic_jit", "convert_jit", "fuse_conv_bn_jit", "prepare_dynamic_jit", "prepare_jit"),
        *("quantize_dynamic_jit", "quantize_jit", "script_qconfig", "script_qconfig_dict"),
    ),
    _FUSE: (
        *("fuse_conv_bn", "fuse_conv_bn_relu", "fuse_convtranspose_bn", "fuse_linear_bn", "fuse_modules"),
        *("fuse_modules_qat", "get_fuser_method", "get_fuser_method_new"),
    ),
    _TABLES: (
        *("MatchAllNode", "Pattern", "get_combined_dict", "get_default_compare_output_module_list"),
        *("get_default_custom_config_dict", "get_default_dynamic_quant_module_mappings"),
        *("get_default_dynamic_sparse_quant_module_mappings", "get_default_float_to_quantized_operator_mappings"),
        *("get_default_qat_module_mappings", "get_default_qconfig_propagation_list"),
        *("get_default_static_quant_module_mappings", "get_default_static_quant_reference_module_mappings"),
        *("get_default_static_sparse_quant_module_mappings", "get_dynamic_quant_module_class"),
        *("get_embedding_qat_module_mappings", "get_embedding_static_quant_module_mappings"),
        *("get_quantized_operator", "get_static_quant_module_class"),
    ),
    _TORCHAO: (
        *("AffineQuantizedObserverBase", "Granularity", "MappingType", "PerAxis", "PerBlock", "PerGroup", "PerRow"),
        *("PerTensor", "PerToken", "TorchAODType", "ZeroPointDomain", "get_block_size"),
    ),
    _DEBUG: ("default_debug_qconfig",),
    "it is a type for annotations; use fxquant.compat.ObserverBase or FakeQuantizeBase.": ("ObserverOrFakeQuantize",),
}
MISSING: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names}
