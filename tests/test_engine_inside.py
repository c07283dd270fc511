"""What an engine shows of its inside: the same facts by two ways, and looks that neither wait nor disturb."""

import threading

import pytest
from paged_script import forget
from serving import builtin_engine

from edge_llm.config import GenerationParams
from edge_llm.engine.engine import Engine
from edge_llm.engine.inside import look
from edge_llm.engine.service import BatchingService
from edge_llm.formats.bundle import open_bundle
from edge_llm.paths import builtin_bundle
from edge_llm.schemes.int8_weight import Int8Weight

STORY = "Once upon a time there was a little girl who lived in a house by the sea. "


def ask(engine, text=STORY, **params):
    return engine.text_request(text, GenerationParams(**{"max_tokens": 12, "ignore_eos": True, **params}))


def state_counts(pages):
    return {state: pages.count(state) for state in ("free", "used", "shared", "cached")}


@pytest.fixture
def fresh():
    return builtin_engine(context=512, chunk=64)


def test_nothing_has_happened_yet(fresh):
    inside = look(fresh)
    assert inside.prompt is None
    assert not any(vars(inside.counters).values())
    assert set(inside.pages.states) == {0}
    assert (inside.overflow, inside.clipped, inside.preemptions, inside.running, inside.waiting) == (0, 0, 0, 0, 0)
    assert 0 < inside.weight_bytes < inside.memory.resident < inside.memory.total


def test_counters_are_the_sums_of_the_answers(fresh):
    texts = [STORY, STORY + "She", STORY * 3, "One two three one two three one two three one two", "A"]
    requests = [ask(fresh, text, max_tokens=150, ignore_eos=long) for text in texts for long in (False, True)]
    finishes = [fresh.answer(request).finish for request in requests]
    counters = look(fresh).counters
    assert counters.requests == len(finishes)
    assert counters.prompt_tokens == sum(finish.usage.prompt_tokens for finish in finishes)
    assert counters.cached_tokens == sum(finish.usage.cached_tokens for finish in finishes) > 0
    assert counters.generated_tokens == sum(finish.usage.completion_tokens for finish in finishes)
    assert counters.drafted_tokens == sum(finish.timings.drafted_tokens for finish in finishes) > 0
    assert counters.accepted_tokens == sum(finish.timings.accepted_tokens for finish in finishes)


def test_the_map_of_pages_is_what_the_memory_counts(fresh):
    def check():
        counts, state = state_counts(look(fresh).pages), fresh.runner.memory.state()
        assert sum(counts.values()) == state["kv_pages"]
        assert counts["free"] == state["kv_pages_free"]
        assert look(fresh).kv_bytes == (state["kv_pages"] - state["kv_pages_free"]) * fresh.runner.memory.page_bytes
        return counts

    fresh.answer(ask(fresh, STORY * 4))
    first = check()
    assert (first["used"], first["shared"]) == (0, 0)
    assert first["cached"] == fresh.runner.memory.state()["prefix_pages"] > 0
    streams = [fresh.stream(ask(fresh, STORY * 4 + more)) for more in ("And then", "But")]
    for stream in streams:
        next(stream)
    two = check()
    assert two["shared"] >= len(fresh.tokenizer.encode(STORY * 4)) // 16 - 1 > 0
    assert two["used"] >= 2
    for stream in streams:
        stream.close()
    assert check()["shared"] == 0
    forget(fresh.runner.memory)
    assert check()["cached"] == 0


@pytest.mark.parametrize(
    ("options", "lanes"), [({}, {"cpu"}), ({"device": "emulated:310p"}, {"cpu", "npu"}), ({"memory": "60%"}, {"cpu", "flash"})]
)
def test_the_lanes_of_a_prompt(options, lanes):
    engine = builtin_engine(context=512, chunk=64, **options)
    traces = []
    engine.runner.on_trace = traces.append
    request = ask(engine, STORY * 8)
    answer = engine.answer(request)
    prompt = look(engine).prompt
    assert {lane.name for lane in prompt.lanes} == lanes
    assert prompt.tokens == answer.finish.usage.prompt_tokens
    prefill = [trace for trace in traces if any("/64" in span.cost_key for span in trace.spans)][:2]
    assert prompt.seconds == pytest.approx(sum(trace.makespan for trace in prefill))
    assert prompt.bound == pytest.approx(sum(trace.one_lane_bound for trace in prefill))
    assert 0 < prompt.bound <= prompt.seconds * (1 + 1e-9)
    assert sum(len(lane.spans) for lane in prompt.lanes) == sum(len(trace.spans) for trace in prefill)
    for lane in prompt.lanes:
        busy = sum(trace.work(lane.name) for trace in prefill)
        assert lane.idle == pytest.approx(1 - busy / prompt.seconds)
        assert all(0 <= span.start <= span.end <= prompt.seconds for span in lane.spans)
        assert [span.start for span in lane.spans] == sorted(span.start for span in lane.spans)
    assert look(engine).prompt is prompt  # made once


def test_the_next_prompt_takes_the_place_of_the_last(fresh):
    """Also where its sequence lies in the memory of the one before, as it often does."""
    for times in range(30, 60):
        fresh.answer(ask(fresh, f"{times} " + STORY * 8))
        answer = fresh.answer(ask(fresh, f"{times} dogs, " + "A dog " * times))
        assert look(fresh).prompt.tokens == answer.finish.usage.prompt_tokens


def test_few_windows_are_kept():
    engine = builtin_engine(context=512, chunk=33, window=1)
    answer = engine.answer(ask(engine, STORY * 18))
    assert answer.finish.usage.prompt_tokens > 9 * 33
    assert 6 * 33 < look(engine).prompt.tokens <= 8 * 33


def test_facts_of_the_model_are_those_of_its_weights(fresh):
    weights = fresh.runner.model.weights
    layers = [weights.use(index) for index in range(len(fresh.runner.model.decoder.layers))]
    linears = [linear for block in (*layers, weights.head) for linear in block.linears.values()]
    int8 = [linear for linear in linears if isinstance(linear, Int8Weight)]
    facts = look(fresh).facts
    assert facts.linears == len(linears)
    assert facts.hot_channels == sum(len(linear.hot_index) for linear in int8)
    assert facts.shadowed_linears == sum(linear.residual for linear in int8)
    assert facts.budget is None
    assert look(builtin_engine(shadow=False)).facts.shadowed_linears == 0


def test_overflow_is_what_the_kernels_found(fresh, monkeypatch):
    found = []
    apply = Int8Weight.apply

    def spy(self, x, pool, **options):
        before = pool.overflow
        y = apply(self, x, pool, **options)
        found.append(pool.overflow - before)
        return y

    fresh.answer(ask(fresh, STORY * 4))
    monkeypatch.setattr(Int8Weight, "apply", spy)
    monkeypatch.setattr(Int8Weight, "add_to", lambda self, program, x, **how: False)  # each linear on its own
    apart = builtin_engine()
    apart.answer(ask(apart, STORY * 4))
    assert look(fresh).overflow == look(apart).overflow == sum(found) > 0
    without = builtin_engine(shadow=False)
    without.answer(ask(without, STORY * 4))
    assert look(without).overflow == 0


def test_streamed_bytes_are_read_for_every_token():
    engine = builtin_engine(memory="60%")
    request = ask(engine, max_tokens=30)
    engine.answer(request)
    before = look(engine).read_bytes
    engine.answer(request)
    after = look(engine)
    assert after.facts.budget == engine.facts.budget > after.weight_bytes - 1
    assert after.streamed_bytes > 0
    steps = 30 - after.counters.accepted_tokens / 2
    assert after.read_bytes - before == pytest.approx(steps * after.streamed_bytes, rel=0.25)
    assert look(builtin_engine()).read_bytes == 0


def test_the_float_path_has_no_pages_and_says_so(fresh):
    from edge_llm.models.reference import FloatModel
    from edge_llm.runner.float_path import FloatRunner
    from edge_llm.sources import open_source

    with open_bundle(builtin_bundle()) as bundle:
        source = bundle.float_source()
    if source is None:
        pytest.skip("the built-in model came without its float weights")
    with open_source(source) as opened:
        runner = FloatRunner(FloatModel(opened, fresh.config), 256)
    engine = Engine("float", fresh.config, fresh.tokenizer, fresh.template, fresh.defaults, runner, 0.0)
    engine.answer(ask(engine))
    inside = look(engine)
    assert (inside.prompt, inside.pages, inside.overflow, inside.weight_bytes, inside.kv_bytes) == (None,) * 5
    assert inside.counters.generated_tokens == 12


def test_looks_from_another_thread_never_fail_and_change_no_token(fresh):
    request = ask(fresh, STORY * 5, max_tokens=200)
    alone = fresh.answer(request)
    forget(fresh.runner.memory)
    looks, failed, done = [0], [], threading.Event()
    most = 20_000  # the thread ends whatever becomes of the answers

    def keep_looking():
        while looks[0] < most and (not done.is_set() or looks[0] < 2000):
            try:
                inside = look(fresh)
                assert len(inside.pages.states) == 512 // inside.pages.page_tokens
                assert max(inside.pages.states) <= 3
                looks[0] += 1
            except Exception as error:
                failed.append(error)
                return

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        answers = [fresh.answer(request) for _ in range(3)]
    finally:
        done.set()
        thread.join(60)
    assert not failed
    assert looks[0] >= 2000
    assert {answer.text for answer in answers} == {alone.text}


def test_progress_of_a_prompt_only_rises_and_ends_at_all(fresh):
    service = BatchingService(fresh)
    prompt = ask(fresh, STORY * 18, max_tokens=2)
    total = len(prompt.prompt)
    assert total > 256
    try:
        for _ in range(2):  # the second time the prompt is known
            stream = service.submit(prompt)
            seen, ended = [], threading.Event()

            def watch(stream=stream, seen=seen, ended=ended):
                while not ended.wait(0.0005):
                    seen.append(stream.prompt_done)
                seen.append(stream.prompt_done)

            watcher = threading.Thread(target=watch, daemon=True)
            watcher.start()
            try:
                for _ in stream:
                    pass
            finally:
                ended.set()
                watcher.join(10)
            done = [each for each, _ in seen]
            assert {all_of_it for _, all_of_it in seen} == {total}
            assert done == sorted(done)
            assert done[-1] == total
    finally:
        service.close(drain_seconds=1.0)


def test_progress_goes_step_by_step_and_knows_what_was_cached(fresh):
    request = ask(fresh, STORY * 18, max_tokens=2)
    fresh = builtin_engine(context=512, chunk=64, window=1)
    generation, stream = fresh.prepare(request)
    fresh.driver.add(generation, stream)
    seen = [stream.prompt_done[0]]
    while not stream.ready:
        fresh.driver.run_until(lambda before=seen[-1]: stream.ready or stream.prompt_done[0] > before)
        seen.append(stream.prompt_done[0])
    assert seen == sorted(seen)
    assert seen[0] == 0 and seen[-1] == len(request.prompt) and len(seen) > 2
    for _ in stream:
        fresh.driver.run_until(lambda: stream.ready)
        if stream.request is request and not fresh.driver.busy:
            break
    again, known = fresh.prepare(request)
    again.start(fresh.runner.memory)
    assert known.prompt_done[0] == again.sequence.length > 0
    again.sequence.close()

