import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";
import { elkWorker } from "./build/elk.ts";
import { notices } from "./build/notices.ts";
import { stampOf } from "./build/sources.ts";

const root = import.meta.dirname;

function stamped(): Plugin {
  return {
    name: "stamped",
    transformIndexHtml: (html) => html.replace("%STAMP%", stampOf(root)),
  };
}

// The template is called explorer.html in the package: Python puts the report into it.
function renamed(): Plugin {
  return {
    name: "renamed",
    enforce: "post",
    generateBundle(_, bundle) {
      const page = bundle["index.html"];
      if (page) page.fileName = "explorer.html";
    },
  };
}

export default defineConfig({
  root,
  plugins: [elkWorker(), stamped(), notices(root), viteSingleFile(), renamed()],
  build: {
    outDir: join(root, "../src/eductor/observe/report"),
    emptyOutDir: false,
    target: "es2022",
    modulePreload: false,
    reportCompressedSize: false,
  },
});
