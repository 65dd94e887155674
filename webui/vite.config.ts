import { fileURLToPath } from "node:url";

import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const path = (relative: string) => fileURLToPath(new URL(relative, import.meta.url));

export default defineConfig({
  plugins: [react(), tailwindcss()],
  resolve: { alias: { "@": path("./src") } },
  build: {
    outDir: path("../platform/tenora_platform/webui"),
    emptyOutDir: true,
    // The page's content security policy allows no fonts or scripts from data: URLs.
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 800, // kB; the router, the kit and the pages, 220 kB on the wire
  },
  server: {
    // `npm run dev` against a platform that runs on its default port.
    proxy: { "/api": process.env.TENORA_URL ?? "http://127.0.0.1:8080" },
  },
});
