// Makes of a title what can stand in an address.
//
// A tool over the world `tool-pure`: all that it imports is given to every component.

import { log } from "taskrun:plugin/log@0.1.0";

const input = {
  type: "object",
  properties: { title: { type: "string", description: "The title." } },
  required: ["title"],
  additionalProperties: false,
};

export const tools = {
  describe() {
    return [
      {
        name: "slug",
        title: "Make a slug",
        description: "Makes of a title a slug: lower case, digits and hyphens.",
        inputSchema: JSON.stringify(input),
        outputSchema: undefined,
        hints: {
          readOnly: true,
          destructive: false,
          idempotent: true,
          terminal: false,
          bounded: false,
        },
        timeout: undefined,
        tags: ["text"],
      },
    ];
  },

  call(call) {
    const { title } = JSON.parse(call.payload);
    const slug = title
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")
      .replace(/^-+|-+$/g, "");
    if (slug === "") {
      throw {
        error: {
          code: "empty-title",
          message: "the title has neither a letter nor a digit",
          causes: [],
        },
        retryHint: undefined,
      };
    }
    log("debug", `${slug.length} characters`, []);
    return {
      value: JSON.stringify(slug),
      serverData: undefined,
      bounds: undefined,
      telemetry: undefined,
      media: [],
    };
  },
};
