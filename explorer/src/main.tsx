import { render } from "preact";
import { Book } from "./book";
import { Shell } from "./components/Shell";
import { unpack } from "./decode";
import { Provenance } from "./provenance";
import type { Report } from "./schema";
import "./style.css";

const SCHEMA = "eductor.report/1";

async function open(root: HTMLElement): Promise<void> {
  const data = document.getElementById("report")?.textContent ?? "";
  if (!data.trim()) throw new Error("there is no report in this page; `eductor explain SCRIPT.py --html` writes one");
  const report = JSON.parse(await unpack(data)) as Report;
  if (report.schema !== SCHEMA) throw new Error(`the report is of the form ${report.schema}, this page reads ${SCHEMA}`);
  if (!report.graphs.length) throw new Error("no graph was captured, so that there is nothing to show");
  document.title = `${report.title} · eductor`;
  const book = new Book(report);
  root.textContent = "";
  render(<Shell book={book} provenance={new Provenance(book)} />, root);
}

const root = document.getElementById("app")!;
open(root).catch((error: unknown) => {
  root.textContent = "";
  const text = error instanceof Error ? error.message : String(error);
  render(<p class="opening" role="alert">{`This report cannot be shown: ${text}.`}</p>, root);
});
