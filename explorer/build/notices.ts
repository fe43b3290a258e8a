// The licences of what is built into the page, as a comment in it.
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

interface Locked {
  packages: Record<string, { version?: string; license?: string; dev?: boolean }>;
}

export function notices(root: string): Plugin {
  return { name: "notices", transformIndexHtml: (html) => html.replace("%NOTICES%", () => textOf(root)) };
}

function textOf(root: string): string {
  const lock = JSON.parse(readFileSync(join(root, "package-lock.json"), "utf8")) as Locked;
  const used = Object.entries(lock.packages).filter(([path, { dev }]) => path && !dev);
  const texts = new Map<string, string[]>();
  for (const [path, { version, license }] of used) {
    const name = `${path.replace("node_modules/", "")} ${version} (${license})`;
    const text = licenceIn(join(root, path)) ?? `https://spdx.org/licenses/${license}.html`;
    texts.set(text, [...(texts.get(text) ?? []), name]);
  }
  return [...texts].map(([text, names]) => `${names.join(", ")}:\n\n${text}`).join("\n\n").replaceAll("--", "- -");
}

/** The text of a short licence; a long one is known under its name. */
function licenceIn(folder: string): string | null {
  if (!existsSync(folder)) return null;
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  const text = file ? readFileSync(join(folder, file), "utf8").trim() : "";
  return text && text.length < 4000 ? text : null;
}
