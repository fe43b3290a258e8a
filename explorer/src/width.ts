import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** How wide an element is on the screen, now and whenever that changes. */
export function useWidth<E extends Element>(start: number): [RefObject<E | null>, number] {
  const element = useRef<E>(null);
  const [width, setWidth] = useState(start);
  useLayoutEffect(() => {
    const watcher = new ResizeObserver(([entry]) => setWidth(entry!.contentRect.width));
    watcher.observe(element.current!);
    return () => watcher.disconnect();
  }, []);
  return [element, width];
}
