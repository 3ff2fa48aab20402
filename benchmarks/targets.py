"""Compares the results with the promises. Each verdict contains the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.summary import Results, Summary

AIOKAFKA: Final = ("aiokafka", "aiokafka-tuned")
LAG_MS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one promise on one cluster.

    Attributes:
        reached: True if the promise is kept, or None if there are no results.
    """

    scenario: str
    target: str
    figure: str
    reached: bool | None


Judge = Callable[[Results], Iterator[Verdict]]


def verdicts(results: Results) -> list[Verdict]:
    """Return the verdicts on all measured promises, in the order of the targets."""
    return [verdict for judge in JUDGES for verdict in judge(results)]


def _million(rate: float) -> str:
    return f"{rate / 1e6:.2f} M/s" if rate >= 1e6 else f"{rate / 1e3:,.1f} k/s"


def _best(results: Results, cluster: str, group: str, clients: tuple[str, ...]) -> Summary | None:
    """Return the fastest of several variants of another client."""
    found = [s for name in clients if (s := results.find(cluster, group, name)) is not None]
    return max(found, key=lambda s: s["rate"], default=None)


def _append(results: Results) -> Iterator[Verdict]:
    found = results.micro.get("append_ns")
    if found is not None:
        yield Verdict("compiled append, 100 B", "≤ 60 ns", f"{found:.0f} ns", found <= 60)


def _fire_mock(results: Results) -> Iterator[Verdict]:
    ours = results.find("mock", "fire", "aiokprod")
    if ours is None:
        return
    name = "`submit`, each handle awaited, mock"
    cpu = ours["cpu_us"]
    yield Verdict(name, "≤ 0.5 µs CPU", f"{cpu:.2f} µs", cpu <= 0.5)
    for peer, times in (("aiokafka", 20), ("confluent", 3)):
        theirs = results.find("mock", "fire", peer)
        if theirs is not None:
            ratio = theirs["cpu_us"] / cpu
            yield Verdict(
                name, f"≥ {times} times less CPU than {peer}", f"{ratio:.1f} times", ratio >= times
            )
    yield Verdict(name, "≥ 2 M/s", _million(ours["rate"]), ours["rate"] >= 2e6)
    apart = ours.get("apart_ms")
    words = f"{ours['lag_ms']:.1f} ms"
    if apart is not None:
        words += f"; {apart:.1f} ms less the collector's pauses"
    yield Verdict(name, "loop lag ≤ 5 ms", words, ours["lag_ms"] <= LAG_MS)
    found = results.micro.get("pending_bytes")
    if found is not None:
        yield Verdict("a pending record", "≤ 100 B overhead", f"{found:.0f} B", found <= 100)


def _fire_real(results: Results) -> Iterator[Verdict]:
    for replicas, floor in ((1, 1.2e6), (3, 4.5e5)):
        group = f"fire-rf{replicas}"
        ours = results.find("kafka", group, "aiokprod")
        if ours is None:
            continue
        name = f"`submit`, RF {replicas}"
        rate = ours["rate"]
        yield Verdict(name, f"≥ {_million(floor)}", _million(rate), rate >= floor)
        for peer, times in (("java", 1.0), ("franz-go", 1.0), ("confluent", 2.5)):
            theirs = results.find("kafka", group, peer)
            if theirs is not None:
                ratio = rate / theirs["rate"]
                yield Verdict(
                    name, f"≥ {times:g} times {peer}", f"{ratio:.2f} times", ratio >= times
                )


def _bulk(results: Results) -> Iterator[Verdict]:
    ours = results.find("mock", "bulk", "aiokprod")
    if ours is not None:
        name = "`send_many`, mock"
        yield Verdict(name, "≥ 10 M/s", _million(ours["rate"]), ours["rate"] >= 1e7)
        cpu = ours["cpu_us"]
        yield Verdict(name, "≤ 0.05 µs CPU", f"{cpu:.3f} µs", cpu <= 0.05)
    for replicas in (1, 3):
        ours = results.find("kafka", f"bulk-rf{replicas}", "aiokprod")
        blaster = results.find("kafka", f"bulk-rf{replicas}", "blaster")
        if ours is not None and blaster is not None:
            share = ours["rate"] / blaster["rate"]
            words = f"{share:.0%} ({_million(ours['rate'])} of {_million(blaster['rate'])})"
            yield Verdict(
                f"`send_many`, RF {replicas}", "≥ 90 % of the blaster", words, share >= 0.9
            )


def _await(results: Results) -> Iterator[Verdict]:
    for cluster, group, where in _places("await"):
        ours = results.find(cluster, group, "aiokprod")
        theirs = _best(results, cluster, group, AIOKAFKA)
        if ours is None or theirs is None:
            continue
        name = f"64 tasks `await send()`, {where}"
        ratio = ours["rate"] / theirs["rate"]
        yield Verdict(name, "≥ 3 times aiokafka", f"{ratio:.2f} times", ratio >= 3)
        share = ours["p99_ms"] / theirs["p99_ms"]
        words = f"{share:.2f} ({ours['p99_ms']:.2f} of {theirs['p99_ms']:.2f} ms)"
        yield Verdict(name, "p99 ≤ half of aiokafka's", words, share <= 0.5)
        cpu = ours["cpu_us"]
        yield Verdict(name, "≤ 6 µs CPU", f"{cpu:.1f} µs", cpu <= 6)


def _lone(results: Results) -> Iterator[Verdict]:
    for cluster, group, where in _places("lone"):
        ours = results.find(cluster, group, "aiokprod")
        bare = results.find(cluster, group, "round-trip")
        if ours is not None and bare is not None:
            above = ours["p50_ms"] - bare["p50_ms"]
            words = f"+ {above:.3f} ms ({ours['p50_ms']:.3f} ms)"
            yield Verdict(
                f"1 task `await send()`, {where}", "p50 ≤ bare Produce + 0.1 ms", words,
                above <= 0.1,
            )  # fmt: skip


def _places(name: str) -> tuple[tuple[str, str, str], ...]:
    return (
        ("mock", name, "mock"),
        ("kafka", f"{name}-rf1", "RF 1"),
        ("kafka", f"{name}-rf3", "RF 3"),
    )


def _flat(
    group: str, less: str, more: str, scenario: str, floor: float
) -> Callable[[Results], Iterator[Verdict]]:
    """Return a function that compares the rates of `more` and `less`, to check that a cost does not
    grow."""

    def judge(results: Results) -> Iterator[Verdict]:
        one, many = (results.find("mock", group, label) for label in (less, more))
        if one is not None and many is not None:
            share = many["rate"] / one["rate"]
            words = f"{share:.0%} ({_million(many['rate'])} of {_million(one['rate'])})"
            label = less.removeprefix("aiokprod, ")
            yield Verdict(scenario, f"≥ {floor:.0%} of {label}", words, share >= floor)

    return judge


def _idle(results: Results) -> Iterator[Verdict]:
    for end, words in (("", "10 partitions"), ("_10000", "10 000 partitions")):
        found = results.micro.get("idle_wakes" + end)
        if found is not None:
            cpu = results.micro["idle_cpu_us" + end]
            figure = f"{found:.1f} a second, {cpu:.0f} µs CPU a second"
            yield Verdict(f"idle producer, {words}", "0 wake-ups", figure, found <= 0)


def _shapes(results: Results) -> Iterator[Verdict]:
    """Compare the CPU time with other clients that have the same options. The promised ratio is the
    ratio for plain records."""
    places = [("shapes", name) for name in ("keyed", "3 headers")]
    places += [("codecs", codec) for codec in ("lz4", "zstd")]
    for group, name in places:
        ours = results.find("mock", group, f"aiokprod, {name}")
        for peer, times in (("aiokafka-tuned", 20), ("confluent", 3)):
            theirs = results.find("mock", group, f"{peer}, {name}")
            if ours is not None and theirs is not None:
                ratio = theirs["cpu_us"] / ours["cpu_us"]
                faster = ours["rate"] / theirs["rate"]
                yield Verdict(
                    f"`submit`, {name}, mock", f"≥ {times} times less CPU than {peer}",
                    f"{ratio:.1f} times ({faster:.1f} times the rate)", ratio >= times,
                )  # fmt: skip


def _start(results: Results) -> Iterator[Verdict]:
    micro = results.micro
    if "import_ms" in micro:
        found = micro["import_ms"]
        yield Verdict("import", "≤ 60 ms", f"{found:.0f} ms", found <= 60)
    if "start_trips" in micro:
        found = micro["start_trips"]
        dials = micro["start_dials"]
        figure = f"{found:.0f}, of them {dials:.0f} to connect to as many brokers"
        yield Verdict("`start()` to first acknowledgment", "≤ 3 round trips", figure, found <= 3)


def _columns(results: Results) -> Iterator[Verdict]:
    ours = results.find("mock", "columns", "aiokprod")
    if ours is not None:
        rows = 1 / ours["cpu_us"]
        figure = f"{rows:.1f} M rows/s per core, sending included"
        yield Verdict("Arrow columns", "≥ 20 M rows/s per core", figure, rows >= 20)


def _lag(results: Results) -> Iterator[Verdict]:
    """Check the lag in wall-clock time, which includes other programs and Python's garbage
    collector, the same lag without the collector, and the lag in CPU time."""
    for figure, words in (
        ("lag_ms", "by the clock"),
        ("apart_ms", "less the collector's pauses"),
        ("held_ms", "by processor time"),
    ):
        ours = [
            s
            for s in results.summaries.values()
            if s.case.client == "aiokprod" and figure in s.figures
        ]
        if ours:
            over = [s for s in ours if s[figure] > LAG_MS]
            worst = max(ours, key=lambda s, name=figure: s[name])  # type: ignore[misc]
            found = (
                f"{len(ours) - len(over)} of {len(ours)} cases; worst {worst[figure]:.1f} ms "
                f"({worst.case.cluster}, {worst.group}: {worst.label})"
            )
            yield Verdict(f"loop lag, every case, {words}", "≤ 5 ms (medians)", found, not over)


def ways(find: Callable[[str], Summary | None]) -> Iterator[Verdict]:
    """Check the promises about serializers and callbacks. `find` returns the summary of a label."""
    for peer, times, pairs in BESIDE:
        for way, theirs_way in pairs.items():
            ours, theirs = find(f"aiokprod, {way}"), find(f"{peer}, {theirs_way}")
            if ours is not None and theirs is not None:
                ratio = ours["rate"] / theirs["rate"]
                yield Verdict(
                    f"`submit`, {way}",
                    f"≥ {times:g} times {peer}",
                    f"{ratio:.1f} times; {theirs['cpu_us'] / ours['cpu_us']:.1f} times less CPU "
                    f"({ours['cpu_us']:.2f} µs)",
                    ratio >= times,
                )


# (other client, promised ratio, our way -> the other client's way). In confluent-kafka, a callback
# is a function passed to the call. json.dumps is left out, because it takes most of the time with
# any client.
BESIDE: Final = (
    ("aiokafka-tuned", 5.0, {
        way: way for way in ("lambda", "orjson.dumps", "callback", "callback, lambda")
    }),
    ("confluent", 1.5, {
        "on_delivery": "callback",
        "on_delivery, lambda": "callback, lambda",
    }),
)  # fmt: skip


def _ways(results: Results) -> Iterator[Verdict]:
    yield from ways(lambda label: results.find("mock", "ways", label))


JUDGES: Final[tuple[Judge, ...]] = (
    _append,
    _fire_mock,
    _fire_real,
    _bulk,
    _await,
    _lone,
    _flat("tasks", "aiokprod, 1 tasks", "aiokprod, 10,000 tasks",
          "10 000 tasks, one partition", 0.8),
    _flat("partitions", "aiokprod, 10 partitions", "aiokprod, 10,000 partitions",
          "10 000 partitions", 0.9),
    _flat("topics", "submit, 1 topics", "submit, 5,000 topics", "5 000 topics, `submit`", 0.95),
    _flat("topics", "64 tasks, 1 topics", "64 tasks, 5,000 topics", "5 000 topics, 64 tasks", 0.95),
    _shapes,
    _ways,
    _idle,
    _start,
    _columns,
    _lag,
)  # fmt: skip
