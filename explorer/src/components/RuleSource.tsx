import { useState } from "preact/hooks";
import { useApp } from "../app";
import { SourceView } from "./SourceView";

/** The source of a pass or a rule, shown when it is asked for. */
export function RuleSource({ index, title }: { index: number; title: string }) {
  const rule = useApp().book.report.rules[index];
  const [open, setOpen] = useState(false);
  if (!rule) return null;
  return (
    <details class="rule-source" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>
        {title} <span class="aside">{`${rule.file}:${rule.line}`}</span>
      </summary>
      {open && <SourceView code={rule.code} language="python" firstLine={rule.line} label={`${title} ${rule.name}`} />}
    </details>
  );
}
