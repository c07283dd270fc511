// Answers under way, one per chat: each goes on when another chat is looked at, and is kept while it grows.
import {Problem, events, json} from "./api.js";
import {throttled} from "./dom.js";
import {hold} from "./drafts.js";
import {halves} from "./store.js";
import {wireMessages} from "./tree.js";

const SAVE_MS = 700;
const SLOW_MS = 2000;  // for which the end of an answer waits for the database
const LONGEST_WAIT = 900;  // seconds for which a server that loads or is busy is asked again

const loading = part => `The model is loading${part ? `: ${Math.round(part * 100)} %` : ""}`;
const pause = (seconds, signal) => new Promise(resolve => {
  const timer = setTimeout(resolve, seconds * 1000);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, {once: true});
});

export class Answers {
  #runs = new Map();

  /** `changed(chat, message)` is called for every piece, `ended(chat, message, kept)` at the end; `kept`: whether it is in the store. */
  constructor(store, models, {changed, ended}) {
    Object.assign(this, {store, models, changed, ended});
  }

  get count() { return this.#runs.size; }
  of(chat) { return this.#runs.get(chat); }
  writes(message) { return [...this.#runs.values()].some(run => run.message.id === message); }
  stop(chat) { this.#runs.get(chat)?.control.abort(); }

  /** Stop the answer of `chat`, if there is one, and wait for its end. */
  finish(chat) {
    this.stop(chat);
    return this.#runs.get(chat)?.whole;
  }

  /** The right to write the message `id`, which no other tab has meanwhile: what gives it back; null where another tab has it. */
  claim(id) { return hold(`writes:${id}`); }

  keepAll() {
    for (const run of this.#runs.values()) {
      halves.keep(run.message);
      this.#save(run);
    }
  }

  /** Have `message`, the last of `path`, written, or written on where it has begun. */
  start(chat, path, release) {
    const message = path.at(-1), run = {chat, message, control: new AbortController(), began: performance.now(), pieces: 0};
    run.keep = throttled(() => this.#save(run), SAVE_MS);
    run.continues = Boolean(message.content);
    this.#runs.set(chat.id, run);
    Object.assign(message, {state: "waiting", error: null, $progress: null, $note: null, $since: Date.now()});
    this.changed(chat, message);
    run.whole = this.#write(run, path, release);
    return run.whole;
  }

  async #write(run, path, release) {
    const {chat, message} = run;
    try {
      await this.#persist(run, path);
      message.state = message.figures?.stopped ?? "done";
    } catch (error) {
      this.#fail(run, error);
    }
    delete message.figures?.stopped;
    halves.keep(message);
    const saved = this.#save(run).then(kept => { if (kept) halves.drop(message.id); return kept; });
    saved.finally(release);
    const kept = await Promise.race([saved, new Promise(resolve => setTimeout(resolve, SLOW_MS, true))]);
    this.#runs.delete(chat.id);
    this.ended(chat, message, kept);
  }

  /** Whether it is saved. */
  async #save(run) {
    const {$since, ...last} = run.message;
    return this.store.renew(last).then(() => true, () => false);
  }

  #fail(run, error) {
    const {message} = run;
    if (run.control.signal.aborted) { message.state = "stopped"; return; }
    if (!(error instanceof Problem)) console.error(error);
    message.state = "failed";
    message.error = {text: error instanceof Problem ? error.message : `The page failed: ${error.message}`, code: error.code, prompt: error.n_prompt_tokens, context: error.n_ctx};
  }

  /** Asks, and asks again while the server loads its model or has too much to do. */
  async #persist(run, path) {
    for (const until = performance.now() + LONGEST_WAIT * 1000;;) {
      try { return await this.#receive(run, path); } catch (error) {
        const {message, control} = run;
        if (!(error instanceof Problem) || error.wait === null || run.pieces || performance.now() > until) throw error;
        message.$note = error.status === 429 ? "The server is busy; this waits for its turn" : await this.#reason(error);
        this.changed(run.chat, message);
        await pause(Math.min(error.wait, 1), control.signal);
        control.signal.throwIfAborted();
      }
    }
  }

  /** Why the server is not ready yet, in words. */
  async #reason(error) {
    const progress = error.progress ?? (await json("health").catch(found => found)).progress;
    if (this.models.whole) this.models.refresh().catch(() => {});
    return progress ? loading(progress.fraction) : `${error.message} This asks again`;
  }

  async #receive(run, path) {
    const {chat, message, control} = run;
    const model = await this.models.chosen(chat, control.signal, part => { message.$note = loading(part); this.changed(chat, message); });
    message.model = model.id;
    message.$note = null;
    const body = {
      ...this.models.sampling(model, chat), model: model.id, messages: wireMessages(chat, path), stream: true,
      stream_options: {include_usage: true}, return_progress: true, ...(run.continues ? {continue_final_message: true, add_generation_prompt: false} : {}),
    };
    for await (const event of events("v1/chat/completions", body, control.signal)) {
      this.#take(run, event);
      this.changed(chat, message);
      run.keep();
    }
    if (!message.figures?.reason) throw new Problem("The answer broke off: the server ended it early.", {code: "broken"});
  }

  #take(run, event) {
    const {message} = run, choice = event.choices?.[0], delta = choice?.delta ?? {};
    if (event.prompt_progress) message.$progress = event.prompt_progress;
    if (event.timings) message.figures = {...message.figures, ...figures(event.timings)};
    if (event.usage) message.figures = {...message.figures, prompt: event.usage.prompt_tokens, written: event.usage.completion_tokens};
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought || delta.content) {
      if (!run.pieces++) run.first = performance.now();
      message.state = "writing";
      message.$progress = message.$note = null;
    }
    if (thought) {
      message.thought = (message.thought ?? "") + thought;
      message.thoughtMs = Math.round(performance.now() - run.first);
    }
    if (delta.content) message.content += delta.content;
    if (choice?.finish_reason) {
      const stopped = choice.stopped_by === "repetition" ? "repeated" : choice.finish_reason === "length" ? "cut" : "done";
      message.figures = {...message.figures, reason: choice.finish_reason, stopped, first: Math.round((run.first ?? performance.now()) - run.began)};
    }
  }
}

const figures = found => ({
  cached: found.cache_n, read: found.prompt_n, readSpeed: found.prompt_per_second, speed: found.predicted_per_second,
  drafted: found.draft_n, accepted: found.draft_n_accepted,
});
