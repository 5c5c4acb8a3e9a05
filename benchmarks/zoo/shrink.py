"""Tiny twins of the configurations of `transformers`: each size by the kind of thing its name says it counts.

No architecture is known here by name but those of SPECIAL, each with the reason.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

VOCAB, PLACES, LAYERS, WIDTH, HEADS, HEAD = 64, 128, 4, 32, 4, 8

# (pattern of a whole field name, its tiny value); the first that fits counts. A field that is None, False or smaller stays.
SIZES: tuple[tuple[str, Any], ...] = (
    (r".*(num_)?(hidden_)?layers_(to|per).*|.*layerdrop.*|.*_layer_norm.*|.*layernorm.*", None),
    (
        r"(max_)?(source|target)_positions|.*max_position_embeddings|n_positions|n_ctx|max_seq_len\w*|max_sequence_length|max_length",
        PLACES,
    ),
    (r"(\w*_)?vocab(ulary)?_size(\w*)?|\w*_vocab", VOCAB),
    (r"(mamba_|linear_|ssm_|m_)?(n_groups|num_groups|n_group|topk_group|ngroups)", 1),
    (
        r"(\w*_)?num_(local_|routed_|total_)?experts|n_routed_experts|moe_num_experts|num_null_experts|zero_expert_num|ffn_num_experts",
        4,
    ),
    (
        r"(\w*_)?(num_)?experts_per_(tok|token)|moe_top_?k|top_?k(_experts)?|num_selected_experts|moe_k|expert_top_k",
        2,
    ),
    (r"(\w*_)?num_shared_experts?|n_shared_experts", 1),
    (r"layer_group_size|num_kv_shared_layers", 2),
    (r"num_nextn_predict_layers|num_mtp_layers|mtp_num_hidden_layers", 0),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", 1),
    (r"moe_layer_end_index", LAYERS - 1),
    (
        r"(\w*_)?(num_)?(key_value|kv)_heads|n_head_kv|num_attention_groups|n_kv_heads|multi_query_group_num",
        2,
    ),
    (
        r"mamba_(num|n)_heads|(linear_)?num_(key|value)_heads|linear_num_(key|value)_heads|mamba_nheads",
        8,
    ),
    (r"(\w*_)?num_heads|(\w*_)?(num_)?attention_heads|n_heads?|index_n_heads", HEADS),
    (r"mamba_(d_head|head_dim|headdim)", HEAD),
    (
        r"(\w*_)?(head_dim|head_size|d_kv|kv_channels|d_head|rotary_dim|rope_head_dim|nope_head_dim)",
        HEAD,
    ),
    (r"(\w*_)?(lora_rank|lora_dim|low_rank\w*)|(\w*_)?rank", 16),
    (r"(\w*_)?(state_size|d_state|state_dim|ssm_state_size)", 8),
    (r"encoder_layers|decoder_layers", LAYERS),
    (
        r"(\w*_)?(num_)?(hidden_|encoder_|decoder_|transformer_|predict_)?layers?|n_layers?|num_blocks|num_block|depth|num_h_layers|num_l_layers|(h|l)_layers|decoder_num_layers",
        LAYERS,
    ),
    (
        r"(\w*_)?(intermediate_size|ffn_dim|d_ff|n_inner|inner_dim|ffn_hidden_size|ffn_size|mlp_dim|dim_ff|lru_width|intermediate_dim|feed_forward_proj_dim)(\w*)?",
        2 * WIDTH,
    ),
    (
        r"(\w*_)?(hidden_size|d_model|n_embd|embedding_size|embed_dim|hidden_dim|word_embed_proj_dim|d_embed|embd_dim|hidden_sizes|cross_attention_hidden_size|backbone_hidden_size|embedding_dim|emb_dim|projection_dim|output_dim|token_dim|feature_size)(\w*)?|dim|width",
        WIDTH,
    ),
    (
        r"(\w*_)?sliding_window(_size)?|attention_window_size|attention_window|attention_chunk_size|attn_chunk_size",
        16,
    ),
    (
        r"(mamba_|ssm_)?(chunk_size|chunk_len\w*)|lsh_attn_chunk_length|local_attn_chunk_length|index_topk|block_size|index_block_size|\w*_chunk_size",
        8,
    ),
    (
        r"(\w*_)?(layer_|block_)?period|sliding_window_pattern|full_attention_interval|\w*_interval",
        2,
    ),
    (r"\w*round_up_to_multiple_of", 8),
    (r"(\w*_)?offset", 1),
    (r"window_size", 4),
    (r"image_size", 32),
    (r"patch_size", 8),
    (r"num_mel_bins", 16),
)
LARGE = 2**30
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
# Fields of every configuration that say nothing of size.
COMMON = frozenset({"chunk_size_feed_forward", "max_length", "min_length", "top_k", "num_labels"})
TOKENS = re.compile(r"(\w*_)?(token_id|token_index|token_ids|idx)")

# Architectures whose sizes depend on each other in a way that no name tells.
SPECIAL: dict[str, dict[str, Any]] = {
    # Places are an axial grid: its two sides multiply to the length, its two widths add up to the model's.
    "reformer": {"axial_pos_shape": (4, 8), "axial_pos_embds_dim": (8, 24), "is_decoder": True},
    # Encoders that are asked to predict the next token must be told not to look ahead.
    **{
        name: {"is_decoder": True}
        for name in "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
        "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl".split()
    },
    # Sparse attention needs longer texts than ours.
    "bigbird_pegasus": {"attention_type": "original_full"},
    # Adapters are per language, and one must be chosen.
    "xmod": {"is_decoder": True, "languages": ["en_XX"], "default_language": "en_XX"},
    # Kinds of attention, each with its number of repetitions.
    "gpt_neo": {"attention_types": [[["global", "local"], LAYERS // 2]]},
    # Without a word on it every layer is of one kind, and their cache needs one layer with attention.
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * (LAYERS // 2)},
    "kimi_linear": {"layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2)},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * (LAYERS // 2)},
    # A language model that predicts the next token, not masked ones.
    "xlm": {"causal": True},
    # Kinds of layers, one letter each.
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "moe"]},
}
SPECIAL["big_bird"] = {"is_decoder": True, "attention_type": "original_full"}


def tiny(config_class: type, name: str = "", *, fill: bool = False) -> Any:
    """A configuration of the class with everything small. `fill`: sizes that are left open as well."""
    return config_class(**{**small_fields(config_class, fill), **SPECIAL.get(name, {})})


def small_fields(config_class: type, fill: bool = False) -> dict[str, Any]:
    default = config_class()
    given = fields_of(default)
    layers = next((given[name] for name in LAYER_COUNTS if given.get(name)), 0)
    fields: dict[str, Any] = {}
    for field, value in given.items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            fields[field] = small_fields(type(value), fill)
        elif isinstance(value, list | tuple) and len(value) == layers > LAYERS:
            fields[field] = [small(field, v) or v for v in kinds_first(value, LAYERS)]
        elif (found := small(field, LARGE if value is None and fill else value)) is not None:
            fields[field] = found
    return consistent(fields, given)


def consistent(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What was equal stays equal: as many keys as queries, heads that fill a widened stream."""
    for heads, keys in (
        ("num_attention_heads", "num_key_value_heads"),
        ("num_heads", "num_kv_heads"),
    ):
        if keys in fields and given.get(keys, 0) in (None, given.get(heads)):
            fields[keys] = fields.get(heads, given[heads])
    width, expand = given.get("hidden_size"), given.get("expand")
    heads, head = given.get("num_heads"), given.get("head_dim")
    if (
        all(isinstance(n, int) for n in (width, expand, heads, head))
        and width * expand == heads * head
    ):
        fields["num_heads"] = WIDTH * expand // HEAD
    return fields


def small(field: str, value: Any) -> Any:
    """The tiny value of a field; None: as it is."""
    if isinstance(value, bool) or value is None:
        return None
    if TOKENS.fullmatch(field):
        if isinstance(value, int) and value >= VOCAB:
            return value % 3
        return [v % VOCAB for v in value] if isinstance(value, list | tuple) else None
    for pattern, size in SIZES:
        if re.fullmatch(pattern, field):
            if size is None:
                return None
            if isinstance(value, list | tuple) and value and all(isinstance(v, int) for v in value):
                return [size] * len(value) if max(value) > size else None
            exact = field in ("encoder_layers", "decoder_layers")
            return size if isinstance(value, int) and (value > size or exact) else None
    return None


def kinds_first(values: Any, length: int) -> list[Any]:
    """So many entries of a list per layer, every kind of layer among them where there is room."""
    first = {repr(value): place for place, value in reversed(list(enumerate(values)))}
    chosen = sorted(first.values())[:length]
    rest = [place for place in range(len(values)) if place not in chosen]
    return [values[place] for place in sorted(chosen + rest[: length - len(chosen)])]


def fields_of(config: Any) -> dict[str, Any]:
    """What its class can be given and is not left open there: what follows from other fields is not for us to say."""
    parameters = inspect.signature(type(config)).parameters
    values = vars(config)
    found = {}
    for name, parameter in parameters.items():
        if name in ("self", "args", "kwargs") or name.startswith("_") or name in COMMON:
            continue
        inner = values.get(name)
        derived = parameter.default in (None, inspect.Parameter.empty)
        found[name] = inner if not derived or hasattr(inner, "model_type") else None
    return found
