// Ways to look at the same thing, one at a time; arrow keys go from one to the next.
import type { ComponentChildren } from "preact";

interface Props<Name extends string> {
  label: string;
  tabs: [Name, string][];
  shown: Name | undefined;
  show: (name: Name) => void;
  children: ComponentChildren;
}

export function Tabs<Name extends string>({ label, tabs, shown, show, children }: Props<Name>) {
  const walk = (event: KeyboardEvent & { currentTarget: HTMLElement }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = tabs[tabs.findIndex(([name]) => name === shown) + (step ?? NaN)];
    if (!next) return;
    show(next[0]);
    event.currentTarget.querySelector<HTMLElement>(`[data-tab="${next[0]}"]`)?.focus();
  };
  return (
    <>
      <div class="tabs" role="tablist" aria-label={label} onKeyDown={walk}>
        {tabs.map(([name, title]) => (
          <button key={name} type="button" role="tab" data-tab={name} aria-selected={shown === name} tabIndex={shown === name ? 0 : -1} onClick={() => show(name)}>
            {title}
          </button>
        ))}
      </div>
      <div class="tab-body" role="tabpanel" aria-label={tabs.find(([name]) => name === shown)?.[1]}>
        {children}
      </div>
    </>
  );
}
