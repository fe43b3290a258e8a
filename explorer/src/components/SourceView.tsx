// Source code to read: CodeMirror without anything that edits.
import { cpp } from "@codemirror/lang-cpp";
import { python } from "@codemirror/lang-python";
import { syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, lineNumbers } from "@codemirror/view";
import { classHighlighter } from "@lezer/highlight";
import { useEffect, useRef } from "preact/hooks";

interface Props {
  code: string;
  language: "python" | "cpp";
  label: string;
  firstLine?: number;
}

export function SourceView({ code, language, label, firstLine = 1 }: Props) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const state = EditorState.create({
      doc: code.trimEnd(),
      extensions: [
        EditorState.readOnly.of(true),
        EditorView.editable.of(false),
        EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
        lineNumbers({ formatNumber: (line) => String(line + firstLine - 1) }),
        language === "cpp" ? cpp() : python(),
        syntaxHighlighting(classHighlighter),
      ],
    });
    const view = new EditorView({ state, parent: place.current! });
    return () => view.destroy();
  }, [code, language, label, firstLine]);
  return <div ref={place} class="source-view" />;
}
