// The layout library as a string inside the page: gzipped, for it is large and seldom wanted.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { gzipSync } from "node:zlib";
import type { Plugin } from "vite";

const NAME = "virtual:elk-worker";

export function elkWorker(): Plugin {
  return {
    name: "elk-worker",
    resolveId: (id) => (id === NAME ? `\0${NAME}` : undefined),
    load(id) {
      if (id !== `\0${NAME}`) return undefined;
      const file = createRequire(import.meta.url).resolve("elkjs/lib/elk-worker.min.js");
      return `export default ${JSON.stringify(gzipSync(readFileSync(file), { level: 9 }).toString("base64"))}`;
    },
  };
}
