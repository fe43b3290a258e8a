// Colours of one line of Python, from CodeMirror's parser.
import { pythonLanguage } from "@codemirror/lang-python";
import { classHighlighter, highlightCode } from "@lezer/highlight";

export interface Piece {
  text: string;
  style: string;
  marked: boolean;
}

export function pieces(code: string, mark: [number, number] | null): Piece[] {
  const found: Piece[] = [];
  let at = 0;
  const put = (text: string, style: string) => {
    for (const [part, marked] of cut(text, at, mark)) if (part) found.push({ text: part, style, marked });
    at += text.length;
  };
  highlightCode(code, pythonLanguage.parser.parse(code), classHighlighter, put, () => put("\n", ""));
  return found;
}

function cut(text: string, at: number, mark: [number, number] | null): [string, boolean][] {
  if (!mark) return [[text, false]];
  const [from, to] = [Math.max(0, mark[0] - at), Math.max(0, mark[1] - at)];
  return [
    [text.slice(0, from), false],
    [text.slice(from, to), true],
    [text.slice(Math.max(from, to)), false],
  ];
}
