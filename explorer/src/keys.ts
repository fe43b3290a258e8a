// The keyboard: one letter an action, but not while somebody types.

export interface Actions {
  pass: (step: 1 | -1) => void;
  match: (step: 1 | -1) => void;
  search: () => void;
  help: () => void;
  changedOnly: () => void;
  theme: () => void;
  overview: () => void;
  close: () => void;
}

export const KEYS: [string, string][] = [
  ["j", "next pass"],
  ["k", "previous pass"],
  ["n", "next match"],
  ["p", "previous match"],
  ["o", "overview"],
  ["/", "search"],
  ["c", "changed passes only, or all"],
  ["d", "light or dark"],
  ["?", "this help"],
  ["Esc", "close what is open"],
];

export function keysFor(actions: Actions): (event: KeyboardEvent) => void {
  const byKey: Record<string, () => void> = {
    j: () => actions.pass(1),
    k: () => actions.pass(-1),
    n: () => actions.match(1),
    p: () => actions.match(-1),
    o: actions.overview,
    c: actions.changedOnly,
    d: actions.theme,
    "/": actions.search,
    "?": actions.help,
    Escape: actions.close,
  };
  return (event) => {
    const typing = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = byKey[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };
}
