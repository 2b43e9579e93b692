// Chat completions of OpenAI's wire format over one local model, streamed or whole, one at a time.
// GET /stats tells how many answers were begun, ended and given up by the client.
import http from "node:http";
import {getLlama, LlamaChatSession} from "node-llama-cpp";

const [modelPath, port] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath});
const context = await model.createContext({contextSize: 2048});
const sequence = context.getSequence();
const stats = {begun: 0, ended: 0, abandoned: 0};
let turn = Promise.resolve();

function history(messages) {
    return messages.map(({role, content}) => {
        const text = typeof content === "string" ? content : (content ?? []).map((part) => part.text ?? "").join("");
        return role === "assistant" ? {type: "model", response: [text]} : {type: role === "system" ? "system" : "user", text};
    });
}

async function answer(request, response, asked) {
    const gone = new AbortController();
    response.on("close", () => response.writableEnded || gone.abort());
    const said = history(asked.messages);
    const question = said.pop();
    const session = new LlamaChatSession({contextSequence: sequence});
    session.setChatHistory(said);
    const before = sequence.tokenMeter.getState();
    const base = {id: `c-${++stats.begun}`, object: "chat.completion.chunk", model: asked.model};
    const send = (data) => response.write(`data: ${JSON.stringify({...base, ...data})}\n\n`);
    if (asked.stream) response.writeHead(200, {"content-type": "text/event-stream"});
    const text = await session.prompt(question.text, {
        temperature: 0, maxTokens: asked.max_tokens ?? 256, signal: gone.signal, stopOnAbortSignal: true,
        onTextChunk: (content) => asked.stream && send({choices: [{index: 0, delta: {content}}]}),
    });
    session.dispose({disposeSequence: false});
    if (gone.signal.aborted) return void stats.abandoned++;
    const used = sequence.tokenMeter.diff(before);
    const usage = {prompt_tokens: used.usedInputTokens, completion_tokens: used.usedOutputTokens};
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
    stats.ended++;
    if (asked.stream) {
        send({choices: [{index: 0, delta: {}, finish_reason: "stop"}]});
        send({choices: [], usage});
        return void response.end("data: [DONE]\n\n");
    }
    const message = {role: "assistant", content: text};
    response.writeHead(200, {"content-type": "application/json"});
    response.end(JSON.stringify({...base, choices: [{index: 0, message, finish_reason: "stop"}], usage}));
}

const server = http.createServer(async (request, response) => {
    if (request.url === "/stats") return void response.end(JSON.stringify(stats));
    if (request.url !== "/v1/chat/completions") return void response.writeHead(404).end();
    let body = "";
    for await (const piece of request) body += piece;
    turn = turn.then(() => answer(request, response, JSON.parse(body))).catch((error) => {
        console.error(error);
        response.destroy();
    });
});
server.listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/v1`));
