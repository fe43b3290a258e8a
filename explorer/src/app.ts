// What every component may use: the report, where we are in it, and the way to go elsewhere.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Book } from "./book";
import type { Provenance } from "./provenance";
import { format, type Route } from "./route";

export interface App {
  book: Book;
  provenance: Provenance;
  route: Route;
  changedOnly: boolean;
}

export const AppContext = createContext<App | null>(null);

export function useApp(): App {
  return useContext(AppContext)!;
}

const NOWHERE = { stage: null, run: null, match: null, view: "changes", lost: null, kernel: null } as const;

/** The route to another page; what stands in the side panel goes along only if it is asked for. */
export function elsewhere(route: Route, change: Partial<Route>): Route {
  const nothing = { node: null, source: null, module: null };
  return { ...route, ...NOWHERE, ...nothing, ...change };
}

/** The same page with something else in the side panel. */
export function beside(route: Route, subject: { node?: number; source?: number; module?: number } | null): Route {
  return { ...route, node: null, source: null, module: null, ...subject };
}

export function linkTo(app: App, route: Route): string {
  return format(route, app.book) || "#";
}

export function visit(app: App, route: Route): void {
  location.hash = linkTo(app, route);
}
