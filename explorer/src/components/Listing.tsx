import { useMemo, useState } from "preact/hooks";
import { listing, textOf } from "../lines";
import type { GraphNode } from "../schema";
import { CodeList } from "./CodeList";

/** A whole graph as Python that runs. */
export function Listing({ nodes, label }: { nodes: GraphNode[]; label: string }) {
  const lines = useMemo(() => listing(nodes), [nodes]);
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(textOf(lines));
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div class="diff">
      <button type="button" class="copy" onClick={copy}>
        {copied ? "Copied" : "Copy as Python"}
      </button>
      <CodeList lines={lines} label={label} />
    </div>
  );
}
