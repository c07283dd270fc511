// Clients in JavaScript against a server of the built-in model: node javascript.mjs URL ROW.  Packages: the import of each row.
const [url, wanted] = process.argv.slice(2)
const model = 'builtin'
const ask = [{ role: 'user', content: 'Tell me a story' }]
const short = { num_predict: 12, temperature: 0 }
const tool = { name: 'weather', description: 'Say the weather', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }
const all = async (pieces, text) => { let said = ''; for await (const one of pieces) said += text(one) ?? ''; return said }
const must = (what, word) => { if (!what) throw new Error(word) }

const rows = {
  async 'ollama'() {
    const { Ollama } = await import('ollama')
    const client = new Ollama({ host: url })
    must((await client.list()).models[0].name === 'builtin:latest', 'list')
    must((await client.show({ model })).capabilities.includes('completion'), 'show')
    const whole = (await client.chat({ model, messages: ask, options: short })).message.content
    must(await all(await client.chat({ model, messages: ask, options: short, stream: true }), (p) => p.message.content) === whole, 'chat')
    must((await client.generate({ model, prompt: 'Hi', options: short })).done, 'generate')
    must((await client.embed({ model, input: ['a', 'b'] })).embeddings.length === 2, 'embed')
  },
  async 'ollama-suffix'() {
    const { Ollama } = await import('ollama')
    const refusal = await new Ollama({ host: url }).generate({ model, prompt: 'a', suffix: 'b' }).catch((error) => error)
    must(/fills no gaps/.test(refusal.message), 'suffix')
  },
  async 'openai'() {
    const { default: OpenAI } = await import('openai')
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none' })
    const asked = { model, messages: ask, max_tokens: 12, temperature: 0 }
    const whole = (await client.chat.completions.create(asked)).choices[0].message.content
    must(await all(await client.chat.completions.create({ ...asked, stream: true }), (p) => p.choices[0]?.delta.content) === whole, 'stream')
    const first = await client.responses.create({ model, input: 'Hi', max_output_tokens: 8 })
    must((await client.responses.create({ model, input: 'And?', previous_response_id: first.id, max_output_tokens: 8 })).output_text, 'responses')
    must((await client.embeddings.create({ model, input: ['a', 'b'] })).data.length === 2, 'embeddings')
  },
  async '@anthropic-ai/sdk'() {
    const { default: Anthropic } = await import('@anthropic-ai/sdk')
    const client = new Anthropic({ baseURL: url, apiKey: 'none' })
    const asked = { model, messages: ask, max_tokens: 12, temperature: 0 }
    const whole = await client.messages.create(asked)
    const final = await client.messages.stream(asked).finalMessage()
    must(final.content[0].text === whole.content[0].text && final.usage.output_tokens === 12, 'stream')
    must((await client.messages.countTokens({ model, messages: ask })).input_tokens > 0, 'count')
  },
  async 'ai: openai-compatible'() {
    const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible')
    await sdk(createOpenAICompatible({ name: 'edge', baseURL: `${url}/v1` })(model))
  },
  async 'ai: openai'() {
    const { createOpenAI } = await import('@ai-sdk/openai')
    const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: 'none' })
    await sdk(openai(model))
    await sdk(openai.chat(model))
  },
  async 'ai: anthropic'() {
    const { createAnthropic } = await import('@ai-sdk/anthropic')
    await sdk(createAnthropic({ baseURL: `${url}/v1`, apiKey: 'none' })(model))
  },
  async 'ai: ollama'() {
    const { createOllama } = await import('ollama-ai-provider-v2')
    await sdk(createOllama({ baseURL: `${url}/api` })(model))
  },
  async '@langchain/ollama'() {
    const { ChatOllama, OllamaEmbeddings } = await import('@langchain/ollama')
    const chat = new ChatOllama({ baseUrl: url, model, temperature: 0, numPredict: 12 })
    const whole = (await chat.invoke('Tell me a story')).content
    must(await all(await chat.stream('Tell me a story'), (p) => p.content) === whole, 'stream')
    must((await new OllamaEmbeddings({ baseUrl: url, model }).embedDocuments(['a', 'b'])).length === 2, 'embeddings')
  },
  async 'continue'() {
    const { constructLlmApi } = await import('@continuedev/openai-adapters')
    const signal = new AbortController().signal
    for (const provider of ['ollama', 'openai', 'llama.cpp', 'lmstudio', 'vllm']) {
      const api = constructLlmApi({ provider, apiKey: 'none', apiBase: `${url}/v1/` })
      const asked = { model, messages: ask, max_tokens: 12, temperature: 0 }
      const whole = (await api.chatCompletionNonStream(asked, signal)).choices[0].message.content
      const told = api.chatCompletionStream({ ...asked, stream: true, stream_options: { include_usage: true } }, signal)
      must(await all(told, (p) => p.choices[0]?.delta.content) === whole, `${provider}: stream`)
      const forced = { ...asked, max_tokens: 60, stream: true, tools: [{ type: 'function', function: tool }], tool_choice: 'required' }
      must(await all(api.chatCompletionStream(forced, signal), (p) => p.choices[0]?.delta.tool_calls?.[0]?.function.name), `${provider}: tools`)
      must((await api.completionNonStream({ model, prompt: 'Once', max_tokens: 5 }, signal)).choices[0].text, `${provider}: completion`)
      must((await api.embed({ model, input: ['a', 'b'] })).data.length === 2, `${provider}: embed`)
      must((await api.list())[0].id === model, `${provider}: list`)
    }
  },
  async 'continue-fim'() {
    const { constructLlmApi } = await import('@continuedev/openai-adapters')
    const api = constructLlmApi({ provider: 'openai', apiKey: 'none', apiBase: `${url}/v1/` })
    const asked = { model, prompt: 'a', suffix: 'b', max_tokens: 5, stream: true }
    const refusal = await all(api.fimStream(asked, new AbortController().signal), () => '').catch((error) => error)
    must(/fim\/completions/.test(String(refusal)), 'fim')
  },
}

async function sdk(made) {
  const { generateText, streamText } = await import('ai')
  const asked = { model: made, prompt: 'Tell me a story', maxOutputTokens: 12, temperature: 0 }
  const whole = await generateText(asked)
  must(whole.text && await all(streamText(asked).textStream, (p) => p) === whole.text, 'stream')
  const messages = [...ask, ...whole.response.messages, { role: 'user', content: 'And then?' }]
  must((await generateText({ ...asked, prompt: undefined, messages })).text, 'second turn')
}

await rows[wanted]()
