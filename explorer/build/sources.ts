// The stamp of the explorer's sources: tests/observe/test_explorer_bundle.py computes it the same way.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

const FILES = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];
const FOLDERS = ["build", "src"];

export function stampOf(root: string): string {
  const hash = createHash("sha256");
  for (const path of [...FILES, ...FOLDERS.flatMap((folder) => filesUnder(root, folder))].sort()) {
    hash.update(path).update("\0").update(readFileSync(join(root, path))).update("\0");
  }
  return hash.digest("hex");
}

function filesUnder(root: string, folder: string): string[] {
  return readdirSync(join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const path = `${folder}/${entry.name}`;
    return entry.isDirectory() ? filesUnder(root, path) : [path];
  });
}
