// Details beside the page: of a node, a line of the user's program, or a module.
import { useEffect, useRef } from "preact/hooks";
import { beside, useApp, visit } from "../app";
import { ModuleDetails } from "./ModuleDetails";
import { NodeDetails } from "./NodeDetails";
import { SourceDetails } from "./SourceDetails";

export function SidePanel() {
  const app = useApp();
  const { node, source, module } = app.route;
  const panel = useRef<HTMLElement>(null);
  useEffect(() => {
    if (panel.current) panel.current.scrollTop = 0;
  }, [node, source, module]);
  return (
    <aside ref={panel} class="panel" aria-label="Details">
      <button type="button" class="icon close" aria-label="Close details" title="Close (Esc)" onClick={() => visit(app, beside(app.route, null))}>
        ×
      </button>
      {node !== null && <NodeDetails id={node} />}
      {source !== null && <SourceDetails index={source} />}
      {module !== null && <ModuleDetails index={module} />}
    </aside>
  );
}
