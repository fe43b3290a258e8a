// What happened to the model, for somebody who has never seen this project.
import { useApp } from "../app";
import { unfusedAttention } from "../attention";
import { time } from "../format";
import type { Graph } from "../schema";
import { InShort, LongestCard, SavedCard } from "./Cards";
import { Flow } from "./Flow";
import { Modules } from "./Modules";

export function Overview({ graph }: { graph: Graph }) {
  const { book, route } = useApp();
  const { report } = book;
  const warnings = report.warnings.filter((warning) => warning.graph === null || warning.graph === graph.number);
  return (
    <article class="page">
      <header class="page-head">
        <h1>{report.graphs.length > 1 ? `Graph ${graph.number}: ${graph.description}` : `What happened to ${graph.description}`}</h1>
        <p class="facts">
          {graph.source && <span>{`starts at ${graph.source.replace(/^\S*\//, "")}`}</span>}
          <span>{`compiled and run in ${time(report.seconds)}`}</span>
          <span>{`eductor ${report.eductor}, torch ${report.torch}`}</span>
        </p>
      </header>
      {route.lost !== null && (
        <p class="warning" role="alert">
          {`This report has nothing at ${route.lost}.`}
        </p>
      )}
      {warnings.map(({ text }) => (
        <p key={text} class="warning" role="note">
          {text}
        </p>
      ))}
      {unfusedAttention(book.runs.filter((run) => run.graph === graph).map((run) => run.pass)).map((reason) => (
        <p key={reason} class="warning" role="note">
          {`Attention in this graph is not fused: ${reason}.`}
        </p>
      ))}
      <div class="cards">
        <InShort graph={graph} />
        <SavedCard graph={graph} />
        <LongestCard graph={graph} />
      </div>
      <Flow graph={graph} />
      <Modules graph={graph} />
    </article>
  );
}
