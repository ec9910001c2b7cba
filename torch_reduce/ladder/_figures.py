"""The counters of a kernel, and what the lessons printed of them. Python's own library only."""

# What nvprof said in the book's chapter 3: (our counter's name, the section that prints it, {rung: value}).
PROFILED = [
    ("branch efficiency", "Warp Divergence, compiled with -g -G",
     {"math_kernel1": 83.33, "math_kernel2": 100.0, "math_kernel3": 71.43}),
    ("instructions per warp", "Improving Divergence in Parallel Reduction",
     {"neighbored": 295.5625, "neighbored_less": 115.3125}),
    ("global load throughput", "Improving Divergence in Parallel Reduction",
     {"neighbored": 67.663, "neighbored_less": 80.144}),
    ("DRAM read throughput", "Reducing with Unrolling",
     {"unrolling2": 26.295, "unrolling4": 49.546, "unrolling8": 62.764}),
    ("barrier stalls", "Reducing with Unrolled Warps",
     {"unrolling8": 58.37, "unroll_warps8": 30.6}),
    ("global load efficiency", "Reducing with Template Functions",
     {"neighbored": 16.73, "neighbored_less": 16.75, "interleaved": 77.94, "unrolling8": 94.68, "unroll_warps8": 98.99,
      "complete_unroll_warps8": 98.99, "complete_unroll_template": 98.99}),
    ("global store efficiency", "Reducing with Template Functions",
     {"neighbored": 25.0, "neighbored_less": 25.0, "interleaved": 95.52, "unrolling8": 97.71, "unroll_warps8": 99.4,
      "complete_unroll_warps8": 99.4, "complete_unroll_template": 99.4}),
]  # fmt: skip

SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global"
# Our name: (ncu's metrics, which are added; unit; what the lessons' nvprof called it).
COUNTERS = {
    "instructions per warp": (["smsp__average_inst_executed_per_warp.ratio"], "", "inst_per_warp"),
    "global load efficiency": ([f"{SECTOR}_op_ld.pct"], "%", "gld_efficiency"),
    "global store efficiency": ([f"{SECTOR}_op_st.pct"], "%", "gst_efficiency"),
    "global load throughput": (["l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second"], "GB/s", "gld_throughput"),
    "DRAM read throughput": (["dram__bytes_read.sum.per_second"], "GB/s", "dram_read_throughput"),
    "barrier stalls": (["smsp__warp_issue_stalled_barrier_per_warp_active.pct"], "%", "stall_sync"),
    "branch efficiency": (["smsp__sass_average_branch_targets_threads_uniform.pct"], "%", "branch_efficiency"),
    "bank conflicts": (
        [f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum" for op in ("ld", "st")],
        "a warp",
        "shared_ld_bank_conflict, shared_st_bank_conflict",
    ),
    "occupancy": (["sm__warps_active.avg.pct_of_peak_sustained_active"], "%", "achieved_occupancy"),
}


def value_text(name, value):
    unit = COUNTERS[name][1]
    if unit == "%":
        return f"{value:.1f}%"
    if unit == "GB/s":
        return f"{value:,.0f} GB/s"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 0.05 else "0"


def cell_text(name, found):
    """The counter's value, or a dash where there is none."""
    return value_text(name, found[name]) if name in found else "–"


def profiled_then(steps):
    """Rows: rung, counter, the printed value, ours, and the section of the book that prints it."""
    rows = []
    for step in steps:
        for counter, section, values in PROFILED:
            if step["name"] in values:
                unit = COUNTERS[counter][1]
                then = f"{values[step['name']]}{' ' * (unit == 'GB/s')}{unit}"
                rows.append((step["name"], counter, then, cell_text(counter, step.get("counters", {})), section))
    return rows


def profiled_table(rows):
    rows = [("rung", "counter", "then", "here", "printed in"), *rows]
    return [
        f"{rung:<25} {counter:<23} {then:>12} {here:>12}   {section}" for rung, counter, then, here, section in rows
    ]


# --- emulated counters ------------------------------------------------------------------------------------------------

# Our name of a counter, and the two lines of its column's head.
COLUMNS = {
    "global load efficiency": ("global load", "efficiency"),
    "global store efficiency": ("global store", "efficiency"),
    "branch efficiency": ("branch", "efficiency"),
    "bank conflicts": ("bank conflicts", "per warp"),
    "barriers": ("barriers", "per warp"),
}


def number_text(counter: str, value: float | None) -> str:
    """An emulated counter's value: percent, or events per warp; none where a kernel does nothing of the kind."""
    if value is None:
        return "none"
    return f"{value:.1f}%" if counter.endswith("efficiency") else f"{value:.4g}"


def cell(counter: str, found: dict[str, float]) -> str:
    """The same in a table, where a dash stands for none."""
    return number_text(counter, found[counter]) if counter in found else "–"


def line(found: dict[str, float]) -> str:
    """What the table of `run` shows, in one line."""
    return ", ".join(f"{name} {cell(name, found)}" for name in COLUMNS if name in found)
