"""The hardware profiles: each figure with its public source. Pure.

What is not published is left out (the fixed time of a forward is 0), chosen (it says so), or calibrated once: the
part of the data sheet's FLOP/s that prefill reaches.
"""

from __future__ import annotations

from dualpath.settings.hardware import Figure, HardwareProfile, ModelFigures, NodeFigures, Scale

PAPER = "Wu et al., arXiv 2602.21548"
H100 = "NVIDIA H100 SXM data sheet"


def _hopper(prefill_hbm: Figure, decode_hbm: Figure, flop_per_s: Figure) -> NodeFigures:
    return NodeFigures(
        gpus=8,
        snic_bytes_per_s=Figure(50e9, f"{PAPER}, evaluation: one storage NIC of 400 Gbps"),
        cnic_bytes_per_s=Figure(400e9, f"{PAPER}, evaluation: eight compute NICs of 400 Gbps"),
        dram_bytes_per_s=Figure(500e9, f"{PAPER}, §3: about 500 GB/s"),
        prefill_hbm_bytes=prefill_hbm,
        decode_hbm_bytes=decode_hbm,
        flop_per_s=flop_per_s,
    )


_FP8 = Figure(8 * 1979e12, f"{H100}: 3,958 TFLOP/s in FP8 with sparsity, half of it dense; 8 GPUs")
_FP16 = Figure(8 * 989e12, f"{H100}: 1,979 TFLOP/s in FP16 with sparsity, half of it dense; 8 GPUs")
_EFFICIENCY = Figure(
    0.114,
    f"calibrated on one published result ({PAPER}, scale: 2P4D, 2,048 agents of the 64K trace, JCT 3,167 s): 2,048 · "
    "157 turns of 35.5 TFLOP (251 tokens, all that is appended over all turns) on 16 GPUs are 0.225 PFLOP/s each, of "
    "1.979",
)
_CARRIED = Figure(
    _EFFICIENCY.value, "that of hopper-ds660b, not calibrated again: a prediction for this model"
)
_MLA_ROW = (
    "512 latent bytes in FP8, 16 of scales, 128 of rope in bf16 (FlashMLA's FP8 layout), and 132 of the indexer "
    "(128 in FP8, a scale)"
)

DS660B = HardwareProfile(
    name="hopper-ds660b",
    node=_hopper(
        Figure(
            8 * 30e9,
            f"{H100}: 80 GB each; FP8 weights of 671 GB over 16 GPUs are 42 GB; 8 GB taken for activations",
        ),
        Figure(
            8 * 50e9,
            f"{H100}: 80 GB each; the weights over 32 GPUs are 21 GB; 9 GB taken for activations",
        ),
        _FP8,
    ),
    model=ModelFigures(
        name="DeepSeek-V3.2 660B",
        layers=61,
        kv_bytes=Figure(
            61 * 788, f"config.json of deepseek-ai/DeepSeek-V3.2-Exp: 61 layers; {_MLA_ROW}"
        ),
        token_flop=Figure(
            74e9 + 34.8e9,
            "DeepSeek-V3 report: 37 G parameters active, 2 FLOP each; sparse attention to 2,048 tokens in its "
            "absorbed form: 128 heads · (576 + 512) · 2 · 61 layers · 2,048",
        ),
        pair_flop=Figure(1.0e6, "config.json: indexer of 64 heads · 128 · 2 · 61 layers"),
        decode_step_s=Figure(0.039, f"{PAPER}, scale, online: TPOT of 2P4D at 0.4 APS"),
    ),
    efficiency=_EFFICIENCY,
    scale=Scale(share=32, bytes_each=750, tokens_each=16, time=1 / 4),
    shape=(2, 4),
    emulated_layers=8,
    ring_layers=2,
)
_HBM_27B = Figure(
    8 * 68e9, f"{H100}: 80 GB each; FP8 weights of 27 GB over 8 GPUs, 8 GB taken for activations"
)
DS27B = HardwareProfile(
    name="hopper-ds27b",
    node=_hopper(
        _HBM_27B,
        _HBM_27B,
        _FP8,
    ),
    model=ModelFigures(
        name="DS 27B",
        layers=30,
        kv_bytes=Figure(30 * 788, f"{PAPER}, evaluation: 30 layers; {_MLA_ROW}"),
        token_flop=Figure(
            7.9e9 + 2.14e9,
            f"{PAPER}, evaluation: 3.95 G parameters active (29 MoE layers of 8 experts of 3 · 2,560 · 1,536, one "
            "dense of 3 · 2,560 · 12,288, attention, indexer), 2 FLOP each; sparse attention to 1,024 tokens",
        ),
        pair_flop=Figure(
            2 * 32 * 64 * 30.0, f"{PAPER}, evaluation: indexer of 32 heads · 64, 30 layers"
        ),
        decode_step_s=Figure(0.0192, "that of hopper-ds660b by layers, 30 of 61"),
    ),
    efficiency=_CARRIED,
    scale=Scale(share=32, bytes_each=370, tokens_each=16, time=0.3),
    shape=(1, 1),
    emulated_layers=8,
    ring_layers=2,
    block_tokens=256,
    default_agents=64,
)
_HBM_QWEN = Figure(
    8 * 63.9e9, f"{H100}: 80 GB each; FP16 weights of 65 GB over 8 GPUs, 8 GB taken for activations"
)
QWEN32B = HardwareProfile(
    name="hopper-qwen32b",
    node=_hopper(
        _HBM_QWEN,
        _HBM_QWEN,
        _FP16,
    ),
    model=ModelFigures(
        name="Qwen2.5-32B",
        layers=64,
        kv_bytes=Figure(
            64 * 2 * 8 * 128 * 2.0,
            "config.json of Qwen/Qwen2.5-32B: 64 layers, K and V of 8 heads · 128 in FP16",
        ),
        token_flop=Figure(65e9, "model card of Qwen2.5-32B: 32.5 G parameters, 2 FLOP each"),
        pair_flop=Figure(
            4 * 40 * 128 * 64.0, "config.json: 4 · 40 heads · 128 · 64 layers, attention"
        ),
        decode_step_s=Figure(0.041, "that of hopper-ds660b by layers, 64 of 61"),
    ),
    efficiency=_CARRIED,
    scale=Scale(share=16, bytes_each=2048, tokens_each=16, time=1 / 8),
    shape=(1, 2),
    emulated_layers=8,
    ring_layers=2,
)
_CHOSEN = "chosen: reading takes several times as long as computing, and two cores carry the bytes"
LAPTOP = HardwareProfile(
    name="laptop",
    node=NodeFigures(
        gpus=1,
        snic_bytes_per_s=Figure(32e6, _CHOSEN),
        cnic_bytes_per_s=Figure(256e6, "eight times the SNIC, as in the hopper profiles"),
        dram_bytes_per_s=Figure(320e6, "ten times the SNIC, as in the hopper profiles"),
        prefill_hbm_bytes=Figure(32e6, _CHOSEN),
        decode_hbm_bytes=Figure(64e6, _CHOSEN),
        flop_per_s=Figure(1.0, "none: times are given in seconds"),
    ),
    model=ModelFigures(
        name="synthetic",
        layers=8,
        kv_bytes=Figure(128.0, _CHOSEN),
        token_flop=Figure(4e-5, _CHOSEN),
        pair_flop=Figure(5e-10, _CHOSEN),
        decode_step_s=Figure(0.001, _CHOSEN),
    ),
    efficiency=Figure(1.0, "none: times are given in seconds"),
    scale=Scale(share=1, bytes_each=1, tokens_each=16, time=1),
    shape=(1, 1),
    emulated_layers=8,
    ring_layers=2,
)

PROFILES = {profile.name: profile for profile in (DS660B, DS27B, QWEN32B, LAPTOP)}


def profile_named(name: str) -> HardwareProfile:
    """Raises ValueError for a name that is none."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(
            f"there is no profile {name!r}; choose one of {', '.join(PROFILES)}"
        ) from None
