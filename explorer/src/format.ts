// Numbers as people read them.

export function time(seconds: number): string {
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  const ms = seconds * 1000;
  if (ms >= 10) return `${ms.toFixed(0)} ms`;
  if (ms >= 0.05) return `${ms.toFixed(1)} ms`;
  const us = seconds * 1e6;
  return us >= 0.5 ? `${us.toFixed(0)} µs` : us > 0 ? "< 1 µs" : "0 ms";
}

export function bytes(size: number | null): string {
  if (size === null) return "size not known";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let [amount, unit] = [size, 0];
  while (amount >= 1024 && unit < units.length - 1) [amount, unit] = [amount / 1024, unit + 1];
  return unit === 0 ? `${size} bytes` : `${amount.toFixed(amount < 10 ? 1 : 0)} ${units[unit]}`;
}

export function count(number: number, what: string, many = `${what}s`): string {
  return `${number.toLocaleString("en")} ${number === 1 ? what : many}`;
}

export function signed(number: number): string {
  return number === 0 ? "±0" : number > 0 ? `+${number}` : `−${-number}`;
}

/** "torch.ops.aten.add.Tensor" is called "add" among people. */
export function shortTarget(target: string): string {
  const operator = /^(?:torch\.ops\.\w+|aten|prims)\.(\w+)/.exec(target);
  return operator ? operator[1]! : target.split(".").at(-1)!;
}

export function fileName(path: string): string {
  return path.split("/").at(-1)!;
}

/** What a stage is called on the page. */
export function stageTitle(name: string, role: string): string {
  const title = { pre_grad: "Pre-grad", autograd: "Autograd", joint: "Joint", partition: "Partition", post_grad: "Post-grad", lower: "Lower", engine: "Engine", link: "Link" }[name] ?? name;
  return role === "forward" || role === "backward" ? `${title}, ${role}` : title;
}
