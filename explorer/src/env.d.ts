/// <reference types="vite/client" />

declare module "virtual:elk-worker" {
  const gzippedBase64: string;
  export default gzippedBase64;
}
