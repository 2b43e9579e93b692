// Serves aimock on loopback and keeps each request as it came; prints the address.
//
// As long as it is offered tools, the model reasons and makes two calls at once; without them it
// answers. GET /requests gives the requests so far and forgets them.
import http from "node:http";
import { LLMock } from "@copilotkit/aimock";

const mock = new LLMock({ port: 0, logLevel: "silent" });
const answer = (request) => {
  const turn = request.messages.filter((message) => message.role === "tool").length / 2;
  if (!request.tools?.length) return { content: "Done.", reasoning: "That is all." };
  const call = (n) => ({
    id: `call_${turn}_${n}`,
    name: "workspace__read",
    arguments: JSON.stringify({ path: "docs/a.md" }),
  });
  return { content: "I look.", reasoning: `Thought ${turn}.`, toolCalls: [call(1), call(2)] };
};
// Slow enough for somebody to step in between.
mock.on({ predicate: () => true }, answer, { latency: 10 });
await mock.start();
const target = new URL(mock.url);

let requests = [];
const server = http.createServer(async (request, response) => {
  if (request.url === "/requests") {
    response.end(JSON.stringify(requests));
    requests = [];
    return;
  }
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const body = Buffer.concat(pieces);
  requests.push({ path: request.url, body: JSON.parse(body) });
  const headers = { ...request.headers, host: target.host, "content-length": body.length };
  const options = { host: target.hostname, port: target.port, method: request.method, path: request.url, headers };
  const asked = http.request(options, (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  asked.on("error", () => response.destroy());
  asked.end(body);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
