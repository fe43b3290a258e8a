import { useState } from "preact/hooks";
import { useApp } from "../app";
import { SourceView } from "./SourceView";

const ROOM = 950;

/** The source of a pass or a rule, shown when it is asked for, or at once where the screen has room. */
export function RuleSource({ index, title, atOnce = false }: { index: number; title: string; atOnce?: boolean }) {
  const rule = useApp().book.report.rules[index];
  const [open, setOpen] = useState(atOnce && innerHeight >= ROOM);
  if (!rule) return null;
  return (
    <details class="rule-source" open={open} onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>
        {title} <span class="aside" title={`${rule.file}:${rule.line}`}>{`${rule.file.replace(/^.*\/(?=eductor\/)/, "")}:${rule.line}`}</span>
      </summary>
      {open && <SourceView code={rule.code} language="python" firstLine={rule.line} label={`${title} ${rule.name}`} />}
    </details>
  );
}
