"""Plans of experiments: which runs there would be, without running any."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.console import Console
from tests.unit.loadgen.report.made import run

from dualpath.cli.bench.arrivals import online
from dualpath.cli.bench.experiment import Plan, capacity, search, uncounted
from dualpath.cli.bench.jct import balance, gain_of, offline, ratio, rollout
from dualpath.cli.bench.live import Live
from dualpath.cli.bench.measure import Cell
from dualpath.cli.bench.real import RealOptions, real
from dualpath.cli.bench.sweeps import ablation, append, generate
from dualpath.cli.bench.workbench import Options
from dualpath.loadgen.replay import ClosedLoop, OpenLoop
from dualpath.loadgen.report.results import Run
from dualpath.settings import Settings
from dualpath.settings.profiles import PROFILES

KINDS = (offline, ratio, append, generate, ablation, balance, online)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_cell_is_a_cluster_that_settings_allow(
    kind: Callable[[Options], Plan], profile: str
) -> None:
    plan = kind(Options(profile, agents=4))
    assert plan.cells
    for cell in plan.cells:
        settings = Settings(**cell.all_settings())
        assert (settings.prefill, settings.decode) == (cell.prefill, cell.decode)
        longest = max(agent.total_tokens for agent in cell.trace.trajectories)
        assert longest < settings.synthetic.max_context


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_experiment_knows_how_many_agents_it_has(kind: Callable[[Options], Plan]) -> None:
    plan = kind(Options("hopper-ds27b"))
    assert {cell.load.agents for cell in plan.cells if isinstance(cell.load, ClosedLoop)} <= {
        32,
        64,
    }
    arriving = {cell.load.agents for cell in plan.cells if isinstance(cell.load, OpenLoop)}
    assert kind is not online or 128 in arriving


def test_offline_has_every_system_on_every_shape() -> None:
    plan = offline(Options("laptop", agents=4))
    assert [(cell.shape, cell.system.name) for cell in plan.cells] == [
        (shape, system)
        for shape in ("1P1D", "2P1D", "1P2D")
        for system in ("basic", "pe-only", "dualpath", "oracle")
    ]


def test_the_papers_equalities_are_judged() -> None:
    plan = offline(Options("laptop", agents=4))
    runs = [
        run(system, jct, shape=shape)
        for shape, system, jct in (
            ("1P1D", "pe-only", 20.0),
            ("1P2D", "pe-only", 21.0),
            ("2P1D", "pe-only", 10.0),
            ("1P1D", "dualpath", 10.5),
            ("2P1D", "dualpath", 7.0),
            ("1P2D", "dualpath", 9.0),
        )
    ]
    judged = {claim.what: claim.good for claim in plan.claims(runs) if claim.good is not None}
    assert judged == {
        "pe-only 1P1D against pe-only 1P2D": True,
        "dualpath 1P1D against pe-only 2P1D": True,
        "dualpath 2P1D against dualpath 1P2D": False,
    }


def test_ablation_changes_the_memory_of_prefill_engines_only() -> None:
    plan = ablation(Options("laptop", agents=4))
    assert len(plan.cells) == 15
    assert {cell.shape for cell in plan.cells} == {"2P4D"}
    memories = {cell.x: cell.settings["prefill_hbm"] for cell in plan.cells}
    assert memories[0.5] * 3 == memories[1.5]
    runs = [
        run(name, jct, shape="2P4D", x=1.0) for name, jct in (("basic", 10), ("+ layerwise", 8))
    ]
    claims = plan.claims(runs)
    assert [(claim.published, claim.measured) for claim in claims] == [("−17.2 %", "−20.0 %")]


def test_append_sweeps_keep_the_contexts() -> None:
    plan = append(Options("laptop", agents=4, values="1,4"))
    firsts = {tuple(agent.turns[0] for agent in cell.trace.trajectories) for cell in plan.cells}
    assert len(firsts) == 1


def test_online_rates_are_multiples_of_full_prefill_nics() -> None:
    plan = online(Options("laptop", agents=4, values="0.5,1"))
    rates = sorted({cell.load.aps for cell in plan.cells if isinstance(cell.load, OpenLoop)})  # type: ignore[type-var]
    assert rates[1] == pytest.approx(2 * rates[0])  # type: ignore[operator]
    assert plan.slo == {"ttft_s": 4.0, "tpot_s": pytest.approx(0.8)}


def test_online_rates_last_equally_long() -> None:
    plan = online(Options("laptop", agents=40, values="0.5,1,2"))
    loads = [cell.load for cell in plan.cells if isinstance(cell.load, OpenLoop)]
    assert {load.agents for load in loads} == {10, 20, 40}
    assert len({round((load.agents or 0) / (load.aps or 1), 3) for load in loads}) == 1


def test_the_limit_of_each_system_is_narrowed_between_places() -> None:
    plan = online(Options("laptop", agents=40, values="0.5,1,2", systems="pe-only,dualpath"))
    full = plan.cells[0].x * 2  # type: ignore[operator]
    limits = {"pe-only": 0.8 * full, "dualpath": 10 * full}
    seen: dict[str, list[float]] = {"pe-only": [], "dualpath": []}

    def served(cell: Cell) -> Run:
        assert cell.x is not None
        seen[cell.system.name].append(cell.x)
        return run(cell.system.name, 1.0, x=cell.x, met_slo=cell.x <= limits[cell.system.name])

    search(plan, Live(Console(quiet=True), len(plan.cells)), served)
    assert seen["dualpath"] == pytest.approx([full / 2, full, 2 * full], rel=0.01)
    assert seen["pe-only"][:2] == pytest.approx([full / 2, full], rel=0.01), "2 is left out"
    good = max(x for x in seen["pe-only"] if x <= limits["pe-only"])
    bad = min(x for x in seen["pe-only"] if x > limits["pe-only"])
    assert bad / good < 1.11


def test_online_claims_compare_latencies_where_both_served() -> None:
    plan = online(Options("laptop", agents=4, values="1"))
    runs = [
        run("pe-only", 1.0, x=1.0, met_slo=True),
        run("dualpath", 1.05, x=1.0, met_slo=True),
        run("pe-only", 1.0, x=2.0, met_slo=False),
        run("dualpath", 3.0, x=2.0, met_slo=True),
    ]
    judged = {claim.what: claim.good for claim in plan.claims(runs) if claim.good is not None}
    assert judged == {
        "TTST at 1 agents/s, dualpath against pe-only": True,
        "TPOT at 1 agents/s, dualpath against pe-only": True,
    }


def test_capacity_is_the_highest_rate_that_all_runs_met() -> None:
    runs = [
        run("a", 1.0, x=1.0, met_slo=True),
        run("a", 1.0, x=2.0, met_slo=True),
        run("a", 1.0, x=2.0, met_slo=False, repetition=1),
        run("b", 1.0, x=1.0, met_slo=False),
    ]
    assert capacity(runs) == {"a": 1.0, "b": 0.0}


def test_invalid_runs_do_not_count_for_capacity_and_are_named() -> None:
    runs = [
        run("a", 1.0, x=1.0, met_slo=True),
        run("a", 1.0, x=2.0, met_slo=True, ok=False),
        run("b", 1.0, x=1.0, met_slo=False, ok=False),
        run("b", 1.0, x=1.0, met_slo=True),
    ]
    assert capacity(runs) == {"a": 1.0, "b": 1.0}
    (said,) = uncounted(runs)
    assert said.endswith("a at 2, b at 1.")
    assert uncounted(runs[:1]) == ()


def test_an_invalid_run_is_measured_once_more() -> None:
    plan = online(Options("laptop", agents=40, values="0.5,1", systems="dualpath"))
    seen: list[float | None] = []

    def served(cell: Cell) -> Run:
        seen.append(cell.x)
        return run("dualpath", 1.0, x=cell.x, met_slo=len(seen) > 1, ok=len(seen) != 1)

    search(plan, Live(Console(quiet=True), len(plan.cells)), served)
    assert seen[0] == seen[1]
    assert seen[1:] == [plan.cells[0].x, plan.cells[1].x], "the second run is the one that counts"


def test_gains_are_losses_only_beyond_what_runs_differ_by() -> None:
    assert str(gain_of([20.0, 22.0], [10.0, 11.0])) == "2.00 × (1.82 to 2.20)"
    assert str(gain_of([20.0], [10.0])) == "2.00 ×"
    assert gain_of([], [1.0]) is None
    worse, within, little = (
        gain_of([9.0, 9.1], [10.0, 10.1]),
        gain_of([9.0, 10.1], [10.0, 10.1]),
        gain_of([9.9, 9.8], [10.0, 10.0]),
    )
    assert worse is not None
    assert worse.is_loss
    assert within is not None
    assert not within.is_loss
    assert little is not None
    assert not little.is_loss


def test_a_sweep_says_the_gain_at_each_place() -> None:
    plan = append(Options("laptop", agents=4, values="1,4"))
    runs = [
        run(system, jct, x=x)
        for x, slow in ((1.0, 20.0), (4.0, 9.0))
        for system, jct in (("pe-only", slow), ("dualpath", 10.0))
    ]
    (claim,) = plan.claims(runs)
    assert claim.measured == "2.00 × at 1, 0.90 × at 4"
    assert claim.good is False


def test_rollout_samples_each_prompt() -> None:
    plan = rollout(Options("laptop", agents=3), samples=4)
    assert all(len(cell.trace) == 12 and cell.target["seeded"] for cell in plan.cells)


def test_a_real_model_is_compared_by_its_answers() -> None:
    plan = real(RealOptions(model="tiny", agents=2))
    assert [cell.system.name for cell in plan.cells] == ["pe-only", "dualpath"]
    for cell in plan.cells:
        assert Settings(**cell.all_settings()).dtype == "float32"
        assert cell.stored
    nothing = plan.claims([run("pe-only", 2.0), run("dualpath", 1.0)])
    assert nothing[-1].good is False, "no answers were compared"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options("gpu"), "no profile 'gpu'"),
        (Options("laptop", trace="65K"), "Table 2 has 32K, 48K, 64K"),
        (Options("laptop", systems="fast"), "no system 'fast'"),
        (Options("laptop", shapes="1P"), "no shape"),
    ],
)
def test_wrong_options_are_said(options: Options, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        offline(options)


@pytest.mark.parametrize("values", ["", "0", "-1", "x", "1,,2", "nan", "1,inf", "1e300"])
def test_wrong_places_on_the_axis_are_said(values: str) -> None:
    with pytest.raises(ValueError, match=r"are no numbers above 0"):
        append(Options("laptop", values=values or " "))
